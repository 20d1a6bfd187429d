package vectors

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/ondemand"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

const (
	// maxLost is how many workers in a row may be lost during one call: the call itself may bring
	// them down.
	maxLost = 3
	// pauseFirst is the pause before workers that have failed are asked again. It doubles up to
	// pauseMax.
	pauseFirst = 5 * time.Millisecond
	pauseMax   = 200 * time.Millisecond
)

// piece is one call of Encode or Decode.
type piece struct {
	*Vectors
	ctx     context.Context
	method  string
	message rpc.Frame // kept until the end, because it may be sent again
	target  target
	size    int64

	exclude []string // workers that have failed since the last pause
	lost    int      // workers that were lost or failed
	pauses  int
	until   time.Time // when the search for another worker ends
}

// Piece serves a call of Encode or Decode. The error is a status.
func (v *Vectors) Piece(down grpc.ServerStream, method string) error {
	c := &piece{Vectors: v, ctx: down.Context(), method: method}
	if err := receive(down, &c.message); err != nil {
		return err
	}
	defer c.message.Free()
	var err error
	if c.target, err = targetOf(c.message.Data); err != nil {
		return err
	}
	if err := checkName("codebook", c.target.codebook); err != nil {
		return err
	}
	rpc.Annotate(c.ctx, "codebook", c.target.codebook)
	c.size = int64(c.message.Data.Len())
	release, err := v.admit(c.size)
	if err != nil {
		return err
	}
	defer release()
	rpc.ReleaseRequest(c.ctx) // its bytes are counted here from now on
	a, err := c.run()
	if a.header != nil {
		if err := down.SetHeader(a.header); err != nil {
			a.reply.Free()
			return err
		}
	}
	down.SetTrailer(a.trailer)
	if err != nil {
		return err
	}
	defer v.hold(int64(a.reply.Data.Len()))()
	return down.SendMsg(&a.reply)
}

// hold counts bytes that can no longer be refused, until release is called.
func (v *Vectors) hold(bytes int64) (release func()) {
	v.bytes.Add(bytes)
	return func() { v.bytes.Add(-bytes) }
}

// answer is a worker's answer.
type answer struct {
	reply           rpc.Frame
	header, trailer metadata.MD
}

// run sends the call to workers until one has answered it, or until every worker would refuse it.
func (c *piece) run() (answer, error) {
	c.until = time.Now().Add(c.cfg.FailoverWait)
	if deadline, ok := c.ctx.Deadline(); ok {
		c.until = deadline
	}
	var last error // of the last worker
	for waited := false; ; {
		generation := c.loads.Generation()
		a, asked, err := c.try()
		switch {
		case asked && err == nil, c.ctx.Err() != nil:
			return a, err
		case asked:
			scope := scopeOf(err)
			if scope == scopeEither {
				c.lost++
			}
			if scope == scopeRequest || c.lost == maxLost {
				return a, err
			}
			last = err
			continue
		}
		refusal := route.Loadable(err)
		switch {
		case refusal != nil && c.cfg.OnDemand > 0 && !waited && !(refusal.Returns && c.mayReturn()):
			wanted := target{c.target.codebook, cmp.Or(c.target.digest, refusal.Digest)}
			switch err := c.load(c.ctx, wanted, rpc.RequestID(c.ctx), generation); {
			case err == nil:
				waited = true
			case !errors.Is(err, ondemand.ErrStale):
				return a, err
			}
		case errors.Is(err, route.ErrNoWorker):
			until, said, waits := c.until, last, last != nil && transient(last) // the last worker's failure explains more than the refusal
			if last == nil {
				until, said, waits = time.Time{}, statusOf(err), c.mayReturn()
			}
			if !waits || !c.pause(until) {
				return a, said
			}
		default:
			return a, statusOf(err)
		}
	}
}

// mayReturn reports whether a worker that served the codebook was lost so recently that it may
// return by itself.
func (c *piece) mayReturn() bool {
	for _, m := range c.fleet.Snapshot().Members {
		b := codebookOn(m.Report, c.target.codebook)
		if b.GetState() == pb.CodebookState_CODEBOOK_STATE_READY && (!m.Connected || !m.Link.Reports()) && time.Since(m.LastMessage) < c.cfg.Grace {
			return true
		}
	}
	return false
}

// transient reports whether a worker that failed with err may serve soon.
func transient(err error) bool {
	scope := scopeOf(err)
	// A worker that is full has said when to retry; the caller decides whether to wait.
	return scope == scopeEither || scope == scopeWorker && rpc.RetryAfter(err) == 0
}

// pause waits before all workers are asked again. It returns false if that would be later than
// until, unless until is zero, or if ctx ends.
func (c *piece) pause(until time.Time) bool {
	d := min(pauseFirst<<min(c.pauses, 16), pauseMax)
	d = d/2 + rand.N(d)
	c.pauses++
	c.exclude = c.exclude[:0]
	if !until.IsZero() && time.Now().Add(d).After(until) {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// try sends the call to one worker. asked is false if no worker is left; the error is then a
// *route.Refusal.
func (c *piece) try() (a answer, asked bool, err error) {
	x := c.index()
	var i int
	for {
		i, err = pickCodebook(x, codebookRequest{
			codebook: c.target.codebook, digest: c.target.digest, exclude: c.exclude, tie: rand.Uint64(),
		})
		if err != nil {
			return a, false, err
		}
		c.exclude = append(c.exclude, x.workers[i].ID)
		if x.snapshot.Members[i].Link.Acquire() {
			break
		}
	}
	link, id, load := x.snapshot.Members[i].Link, x.workers[i].ID, x.workers[i].load
	defer link.Release()
	load.begin(c.size)
	defer load.end(c.size)
	rpc.Annotate(c.ctx, "worker", id)
	up, cancel := reach(c.ctx, link)
	defer cancel(nil)
	c.message.Data.Ref()
	err = link.Conn().Invoke(up, c.method, &rpc.Frame{Data: c.message.Data}, &a.reply, c.codec, grpc.Header(&a.header),
		grpc.Trailer(&a.trailer))
	if err == nil {
		link.Heard()
	} else {
		a.reply.Free()
	}
	a.header, a.trailer = relay.Returned(a.header), relay.Returned(a.trailer)
	return a, true, ended(c.ctx, link.Lost(), id, err)
}
