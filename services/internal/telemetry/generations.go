package telemetry

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/semconv/v1.41.0/genaiconv"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/rpc"
)

// Bounds of histograms, as the conventions advise.
var (
	durations  = []float64{.01, .02, .04, .08, .16, .32, .64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
	firsts     = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}
	perTokens  = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5}
	tokenUsage = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}
)

// Generations measures generations by the conventions, once for each, when it ends. Safe for concurrent use; nil measures nothing.
type Generations struct {
	duration   genaiconv.ServerRequestDuration
	firstToken genaiconv.ServerTimeToFirstToken
	perToken   genaiconv.ServerTimePerOutputToken
	usage      genaiconv.ClientTokenUsage
}

// NewGenerations makes the measures.
func NewGenerations(m metric.Meter) (*Generations, error) {
	g := &Generations{}
	var errs [4]error
	g.duration, errs[0] = genaiconv.NewServerRequestDuration(m, metric.WithExplicitBucketBoundaries(durations...))
	g.firstToken, errs[1] = genaiconv.NewServerTimeToFirstToken(m, metric.WithExplicitBucketBoundaries(firsts...))
	g.perToken, errs[2] = genaiconv.NewServerTimePerOutputToken(m, metric.WithExplicitBucketBoundaries(perTokens...))
	g.usage, errs[3] = genaiconv.NewClientTokenUsage(m, metric.WithExplicitBucketBoundaries(tokenUsage...))
	return g, errors.Join(errs[:]...)
}

// Generation is one that has ended.
type Generation struct {
	// Model is one that a worker had: callers must not be able to make series.
	Model string
	Chat  bool
	// Input and Output are tokens of the prompt, and generated.
	Input, Output int64
	// Continuations is how many outputs were computed.
	Continuations int64
	// FirstToken is when the first token came, counted from the call's arrival; 0: none did, or it was another worker's.
	FirstToken time.Duration
	// Took is all of its time, and Err how its caller saw it end.
	Took time.Duration
	Err  error
}

// Record measures a generation. A span of ctx that is recorded becomes the example of what it measures.
func (g *Generations) Record(ctx context.Context, of Generation) {
	if g == nil {
		return
	}
	operation := genaiconv.OperationNameAttr(Operation(of.Chat).Value.AsString())
	model := semconv.GenAIRequestModel(of.Model)
	ended := []attribute.KeyValue{model}
	if of.Err != nil {
		ended = append(ended, semconv.ErrorTypeKey.String(rpc.CodeName(status.Code(of.Err))))
	}
	g.duration.Record(ctx, of.Took.Seconds(), operation, provider, ended...)
	if of.Input > 0 {
		g.usage.Record(ctx, of.Input, operation, provider, genaiconv.TokenTypeInput, model)
	}
	if of.Output > 0 {
		g.usage.Record(ctx, of.Output, operation, provider, genaiconv.TokenTypeOutput, model)
	}
	if of.Err != nil || of.FirstToken <= 0 {
		return
	}
	g.firstToken.Record(ctx, of.FirstToken.Seconds(), operation, provider, model)
	if behind := of.Output - of.Continuations; behind > 0 { // those behind the first of each, as if all had as many
		each := (of.Took - of.FirstToken).Seconds() * float64(of.Continuations) / float64(behind)
		g.perToken.Record(ctx, each, operation, provider, model)
	}
}
