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
