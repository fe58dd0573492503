"""Asks a RabbitMQ node by pika, another implementation of AMQP than the sink's.

reader.py URL declare QUEUE [ARGUMENTS as JSON]   makes a durable queue
reader.py URL transient QUEUE                     makes a queue that confirms without a disk
reader.py URL bind EXCHANGE TYPE QUEUE KEY        makes a durable exchange and binds a durable queue to it
reader.py URL read QUEUE                          prints all messages as JSON lines, and leaves them where they are
reader.py URL ids QUEUE                           prints the event ids of all messages, quickly, and leaves them where they are
"""
import base64
import json
import sys

import pika


def text(value):
    return value if isinstance(value, str) or value is None else str(value)


def main(url, command, *args):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    if command == "declare":
        channel.queue_declare(args[0], durable=True, arguments=json.loads(args[1]) if args[1:] else None)
    elif command == "transient":
        channel.queue_declare(args[0], durable=False)
    elif command == "bind":
        exchange, kind, queue, key = args
        channel.exchange_declare(exchange, exchange_type=kind, durable=True)
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, routing_key=key)
    elif command == "read":
        last = None
        while True:
            method, properties, body = channel.basic_get(args[0])
            if method is None:
                break
            last = method.delivery_tag
            print(json.dumps({
                "headers": {name: text(value) for name, value in (properties.headers or {}).items()},
                "content_type": properties.content_type,
                "message_id": properties.message_id,
                "delivery_mode": properties.delivery_mode,
                "timestamp": properties.timestamp,
                "type": properties.type,
                "routing_key": method.routing_key,
                "payload": base64.b64encode(body).decode(),
            }))
        if last is not None:
            channel.basic_nack(last, multiple=True, requeue=True)
        # An answer of the queue's: by then they are back in it.
        channel.queue_declare(args[0], passive=True)
    elif command == "ids":
        left = channel.queue_declare(args[0], passive=True).method.message_count
        if left:
            for _, properties, _ in channel.consume(args[0]):
                print(properties.headers["event_id"])
                left -= 1
                if not left:
                    break
            channel.basic_nack(0, multiple=True, requeue=True)
            channel.cancel()
    else:
        sys.exit("no such command")
    connection.close()


main(*sys.argv[1:])
