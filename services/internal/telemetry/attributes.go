package telemetry

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/flood"
)

// provider is gen_ai.provider.name: whose conventions the requests follow.
const provider = "millrace"

// Attributes of spans that the conventions have no name for.
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

// Operation is gen_ai.operation.name of a generation.
func Operation(chat bool) attribute.KeyValue {
	if chat {
		return semconv.GenAIOperationNameChat
	}
	return semconv.GenAIOperationNameTextCompletion
}

// OfRequest is what a span says of a request: its model and its knobs, and nothing of its text, to which stop strings belong.
func OfRequest(in *pb.GenerateRequest) []attribute.KeyValue {
	out := []attribute.KeyValue{
		Operation(in.GetChat() != nil), semconv.GenAIProviderNameKey.String(provider),
		semconv.GenAIRequestModel(flood.Clip(in.GetModel())),
	}
	if s := in.GetSampling(); s != nil {
		out = known(out, semconv.GenAIRequestTemperature, s.Temperature)
		out = known(out, semconv.GenAIRequestTopP, s.TopP)
		out = known(out, semconv.GenAIRequestFrequencyPenalty, s.FrequencyPenalty)
		out = known(out, semconv.GenAIRequestPresencePenalty, s.PresencePenalty)
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

// known appends a knob that is set.
func known(to []attribute.KeyValue, of func(float64) attribute.KeyValue, v *float32) []attribute.KeyValue {
	if v == nil {
		return to
	}
	return append(to, of(float64(*v)))
}

// Usage is what a span says of what came of a request.
type Usage struct {
	// Input are the prompt's tokens, Cached those of them that were not computed again, and Output those generated.
	Input, Cached, Output int
	// FirstToken is when the first of these came, counted from the call's arrival; 0: none did.
	FirstToken time.Duration
	// Reasons are why its continuations ended, those that did.
	Reasons []string
}

// Attributes are those of a span.
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
