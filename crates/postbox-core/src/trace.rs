//! W3C Trace Context: taken from the current span at enqueue, linked to at dispatch (feature `otel`).

/// The current span's `traceparent` and `tracestate`; none without the feature or outside of a sampled trace.
#[cfg(feature = "otel")]
pub(crate) fn current() -> Option<(String, Option<String>)> {
    use opentelemetry::trace::TraceContextExt as _;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    let context = tracing::Span::current().context();
    let span = context.span();
    let span = span.span_context();
    if !span.is_valid() {
        return None;
    }
    let parent = format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags());
    let state = span.trace_state().header();
    Some((parent, (!state.is_empty()).then_some(state)))
}

#[cfg(not(feature = "otel"))]
pub(crate) fn current() -> Option<(String, Option<String>)> {
    None
}

/// Links a dispatch span to the span that enqueued the event.
#[cfg(feature = "otel")]
pub(crate) fn link(span: &tracing::Span, traceparent: Option<&str>) {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    let parse = |text: &str| -> Option<SpanContext> {
        let mut parts = text.split('-');
        let (_, trace, id, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        Some(SpanContext::new(
            TraceId::from_hex(trace).ok()?,
            SpanId::from_hex(id).ok()?,
            TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
            true,
            TraceState::default(),
        ))
    };
    if let Some(context) = traceparent.and_then(parse) {
        span.add_link(context);
    }
}

#[cfg(not(feature = "otel"))]
pub(crate) fn link(_: &tracing::Span, _: Option<&str>) {}

#[cfg(all(test, feature = "otel"))]
mod tests {
    use super::{current, link};
    use crate::{Record, Topic};
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
    use tracing_subscriber::layer::SubscriberExt as _;

    #[test]
    fn an_event_takes_the_current_span_and_its_dispatch_links_back() {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let record =
            || Record::builder(Topic::from_static("org.thing.happened.v1")).json(&1).build().unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            assert_eq!(current(), None, "outside of a span");
            let request = tracing::info_span!("request");
            let record = request.in_scope(record);
            link(&tracing::info_span!("dispatch"), record.traceparent.as_deref());
            link(&tracing::info_span!("broken"), Some("00-not-a-trace"));
            drop(request);
            let spans = exporter.get_finished_spans().unwrap();
            let span = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
            let context = &span("request").span_context;
            let parent = format!("00-{}-{}-01", context.trace_id(), context.span_id());
            assert_eq!(record.traceparent, Some(parent));
            let links = &span("dispatch").links;
            assert_eq!(
                links.iter().map(|link| link.span_context.span_id()).collect::<Vec<_>>(),
                [context.span_id()]
            );
            assert!(span("broken").links.is_empty());
        });
        assert_eq!(record().traceparent, None, "without a subscriber");
    }
}
