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

// Histogram bounds that the conventions recommend.
var (
	durations  = []float64{.01, .02, .04, .08, .16, .32, .64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
	firsts     = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}
	perTokens  = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5}
	tokenUsage = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}
)

// Generations records metrics of generations by the conventions, once for each, when it ends. It is
// safe for concurrent use. A nil Generations does nothing.
type Generations struct {
	duration   genaiconv.ServerRequestDuration
	firstToken genaiconv.ServerTimeToFirstToken
	perToken   genaiconv.ServerTimePerOutputToken
	usage      genaiconv.ClientTokenUsage
}

// NewGenerations creates the instruments.
func NewGenerations(m metric.Meter) (*Generations, error) {
	g := &Generations{}
	var errs [4]error
	g.duration, errs[0] = genaiconv.NewServerRequestDuration(m, metric.WithExplicitBucketBoundaries(durations...))
	g.firstToken, errs[1] = genaiconv.NewServerTimeToFirstToken(m, metric.WithExplicitBucketBoundaries(firsts...))
	g.perToken, errs[2] = genaiconv.NewServerTimePerOutputToken(m, metric.WithExplicitBucketBoundaries(perTokens...))
	g.usage, errs[3] = genaiconv.NewClientTokenUsage(m, metric.WithExplicitBucketBoundaries(tokenUsage...))
	return g, errors.Join(errs[:]...)
}

// Generation describes a generation that has ended.
type Generation struct {
	// Model is a model that a worker has, so that callers cannot create series.
	Model string
	Chat  bool
	// Input and Output count the tokens of the prompt and the generated ones.
	Input, Output int64
	// Continuations counts the outputs that were computed.
	Continuations int64
	// FirstToken is the time from the call's arrival to the first token; 0: there was none, or
	// another worker generated it.
	FirstToken time.Duration
	// Took is the total time, and Err the status that the caller received.
	Took time.Duration
	Err  error
}

// Record records a generation. If the span of ctx is recorded, it becomes the exemplar.
func (g *Generations) Record(ctx context.Context, gen Generation) {
	if g == nil {
		return
	}
	operation := genaiconv.OperationNameAttr(Operation(gen.Chat).Value.AsString())
	model := semconv.GenAIRequestModel(gen.Model)
	ended := []attribute.KeyValue{model}
	if gen.Err != nil {
		ended = append(ended, semconv.ErrorTypeKey.String(rpc.CodeName(status.Code(gen.Err))))
	}
	g.duration.Record(ctx, gen.Took.Seconds(), operation, provider, ended...)
	if gen.Input > 0 {
		g.usage.Record(ctx, gen.Input, operation, provider, genaiconv.TokenTypeInput, model)
	}
	if gen.Output > 0 {
		g.usage.Record(ctx, gen.Output, operation, provider, genaiconv.TokenTypeOutput, model)
	}
	if gen.Err != nil || gen.FirstToken <= 0 {
		return
	}
	g.firstToken.Record(ctx, gen.FirstToken.Seconds(), operation, provider, model)
	// all tokens but the first of each continuation, as if all had as many
	if later := gen.Output - gen.Continuations; later > 0 {
		each := (gen.Took - gen.FirstToken).Seconds() * float64(gen.Continuations) / float64(later)
		g.perToken.Record(ctx, each, operation, provider, model)
	}
}
