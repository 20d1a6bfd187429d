package relaybench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// loop runs the closed loop of all callers on a way: caller i sends over connection i, makes its next prompt once its call has
// ended, and sends it at once. Callers begin at times drawn from the span of one first token, equal for all ways of a round, and
// the first call of each is not counted; a second one is made and counted however late it is by then.
func (m *measurement) loop(ctx context.Context, c *PromptsConfig, w *way, kind string, round int) (stats.Histogram, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end := time.Now().Add(c.Duration)
	each := make([]stats.Histogram, c.Callers)
	var work sync.WaitGroup
	for i := range c.Callers {
		work.Go(func() {
			if err := m.caller(ctx, c, w, kind, uint64(round*c.Callers+i), i, end, &each[i]); err != nil {
				cancel(fmt.Errorf("%w: caller %d through %s: %w", ErrFailed, i, w.name, err))
			}
		})
	}
	work.Wait()
	if ctx.Err() != nil {
		return stats.Histogram{}, context.Cause(ctx)
	}
	var all stats.Histogram
	for i := range each {
		all.Merge(&each[i])
	}
	return all, nil
}

// caller is one caller until end, for two calls at least.
func (m *measurement) caller(ctx context.Context, c *PromptsConfig, w *way, kind string, stream uint64, i int, end time.Time,
	times *stats.Histogram) error {
	random := rand.New(rand.NewPCG(c.Seed, stream))
	phase := time.Duration(random.Int64N(int64(c.FirstToken)))
	in := m.prompt(c, kind, random)
	select {
	case <-time.After(phase):
	case <-ctx.Done():
		return nil
	}
	for n := 0; n < 2 || time.Now().Before(end); n++ {
		out := load.Call(ctx, w.conns[i%len(w.conns)], in, time.Now(), 0, load.Observer{}, nil)
		switch {
		case out.Cut:
			return nil
		case out.Tokens != 1:
			return errors.Join(fmt.Errorf("%d tokens, %v", out.Tokens, out.Code), errors.New(out.Message))
		case n > 0:
			times.Add(out.FirstToken)
		}
		in = m.prompt(c, kind, random)
	}
	return nil
}

// prompt makes a request for one token behind a prompt that no other begins with.
func (m *measurement) prompt(c *PromptsConfig, kind string, random *rand.Rand) *pb.GenerateRequest {
	maker := m.maker
	maker.Seed = random.Uint64()
	if kind == kindText {
		maker.Text = words(c.Bytes, random)
	}
	return maker.Request(0, load.Size{Prompt: c.ids(), Output: 1})
}

// common are frequent English words, most of which are one token in most vocabularies.
var common = strings.Fields("the of and to in a is that for it as was with be by on not he his but at are this have from or had they which one you were")

// words is a text of so many bytes.
func words(bytes int, random *rand.Rand) string {
	var text strings.Builder
	text.Grow(bytes + 16)
	for text.Len() < bytes {
		text.WriteString(common[random.IntN(len(common))])
		text.WriteByte(' ')
	}
	return text.String()[:bytes]
}
