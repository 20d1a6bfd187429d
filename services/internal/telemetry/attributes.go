package telemetry

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/ratelog"
)

// provider is gen_ai.provider.name: the provider whose conventions the requests follow.
const provider = "millrace"

// Span attributes without a convention.
const (
	WorkerID       = attribute.Key("millrace.worker.id")
	WorkerClass    = attribute.Key("millrace.worker.class")
	Attempt        = attribute.Key("millrace.attempt")
	AttemptCause   = attribute.Key("millrace.attempt.cause")
	Attempts       = attribute.Key("millrace.attempts")
	SentTokens     = attribute.Key("millrace.tokens")
	ResumedTokens  = attribute.Key("millrace.resumed_tokens")
	ExpectedCached = attribute.Key("millrace.expected_cached_tokens")
	Steps          = attribute.Key("millrace.steps")
	StepTime       = attribute.Key("millrace.step_time")
	Preemptions    = attribute.Key("millrace.preemptions")
)

// Operation returns the gen_ai.operation.name of a generation.
func Operation(chat bool) attribute.KeyValue {
	if chat {
		return semconv.GenAIOperationNameChat
	}
	return semconv.GenAIOperationNameTextCompletion
}

// RequestAttributes returns the attributes of a request: its model and its sampling parameters.
// They contain no text, and so no stop strings.
func RequestAttributes(in *pb.GenerateRequest) []attribute.KeyValue {
	out := []attribute.KeyValue{
		Operation(in.GetChat() != nil), semconv.GenAIProviderNameKey.String(provider),
		semconv.GenAIRequestModel(ratelog.Clip(in.GetModel())),
	}
	if s := in.GetSampling(); s != nil {
		out = appendSet(out, semconv.GenAIRequestTemperature, s.Temperature)
		out = appendSet(out, semconv.GenAIRequestTopP, s.TopP)
		out = appendSet(out, semconv.GenAIRequestFrequencyPenalty, s.FrequencyPenalty)
		out = appendSet(out, semconv.GenAIRequestPresencePenalty, s.PresencePenalty)
		if s.TopK != nil {
			out = append(out, semconv.GenAIRequestTopK(float64(s.GetTopK())))
		}
		if n := s.GetNumSequences(); n > 1 {
			out = append(out, semconv.GenAIRequestChoiceCount(int(n)))
		}
		if s.Seed != nil {
			out = append(out, semconv.GenAIRequestSeed(int(s.GetSeed())))
		}
	}
	if s := in.GetStopping(); s != nil && s.MaxTokens != nil {
		out = append(out, semconv.GenAIRequestMaxTokens(int(s.GetMaxTokens())))
	}
	return out
}

// appendSet appends a parameter if it is set.
func appendSet(attrs []attribute.KeyValue, attr func(float64) attribute.KeyValue, v *float32) []attribute.KeyValue {
	if v == nil {
		return attrs
	}
	return append(attrs, attr(float64(*v)))
}

// Usage is the outcome of a request.
type Usage struct {
	// Input counts the prompt's tokens, Cached those of them that were in the prefix cache, and
	// Output the generated tokens.
	Input, Cached, Output int
	// FirstToken is the time from the call's arrival to the first generated token (TTFT); 0: there
	// was none.
	FirstToken time.Duration
	// Reasons are the finish reasons of the continuations that ended.
	Reasons []string
}

// Attributes returns the span attributes.
func (u Usage) Attributes() []attribute.KeyValue {
	out := []attribute.KeyValue{
		semconv.GenAIUsageInputTokens(u.Input), semconv.GenAIUsageCacheReadInputTokens(u.Cached), semconv.GenAIUsageOutputTokens(u.Output),
	}
	if u.FirstToken > 0 {
		out = append(out, semconv.GenAIResponseTimeToFirstChunk(u.FirstToken.Seconds()))
	}
	if len(u.Reasons) > 0 {
		out = append(out, semconv.GenAIResponseFinishReasons(u.Reasons...))
	}
	return out
}
