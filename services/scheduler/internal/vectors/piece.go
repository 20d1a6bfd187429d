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
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

const (
	// maxLost is how many workers in a row may be lost or fail at one call: it may be the call that they do not survive.
	maxLost = 3
	// pauseFirst is the pause before workers that have failed are asked again; it doubles up to pauseMax.
	pauseFirst = 5 * time.Millisecond
	pauseMax   = 200 * time.Millisecond
)

// piece is one call of Encode or Decode.
type piece struct {
	*Vectors
	ctx     context.Context
	method  string
	message rpc.Frame // kept until the end, so that it can be sent again
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
	rpc.LetGo(c.ctx) // it is counted here
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

// hold counts bytes that cannot be refused any more, until release is called.
func (v *Vectors) hold(bytes int64) (release func()) {
	v.bytes.Add(bytes)
	return func() { v.bytes.Add(-bytes) }
}

// answer is what a worker answered.
type answer struct {
	reply           rpc.Frame
	header, trailer metadata.MD
}

// run gives the call to workers until one has answered it, or every one would refuse it.
func (c *piece) run() (answer, error) {
	c.until = time.Now().Add(c.cfg.FailoverWait)
	if deadline, ok := c.ctx.Deadline(); ok {
		c.until = deadline
	}
	var last error // what the last worker said
	for waited := false; ; {
		landed := c.flights.landed.Load()
		a, asked, err := c.try()
		switch {
		case asked && err == nil, c.ctx.Err() != nil:
			return a, err
		case asked:
			of := blameOf(err)
			if of == either {
				c.lost++
			}
			if of == request || c.lost == maxLost {
				return a, err
			}
			last = err
			continue
		}
		refusal := route.Loadable(err)
		switch {
		case refusal != nil && c.cfg.OnDemand > 0 && !waited && !(refusal.Returns && c.between()):
			wanted := target{c.target.codebook, cmp.Or(c.target.digest, refusal.Digest)}
			switch err := c.load(c.ctx, wanted, rpc.RequestID(c.ctx), landed); {
			case err == nil:
				waited = true
			case !errors.Is(err, errOld):
				return a, err
			}
		case errors.Is(err, route.ErrNoWorker):
			until, said, waits := c.until, last, last != nil && transient(last) // which is nearer the truth than why nobody else is there
			if last == nil {
				until, said, waits = time.Time{}, fault.Status(err), c.between()
			}
			if !waits || !c.pause(until) {
				return a, said
			}
		default:
			return a, fault.Status(err)
		}
	}
}

// between is whether a worker that served the codebook is lost, and was heard so recently that it may be back by itself.
func (c *piece) between() bool {
	for _, m := range c.fleet.Snapshot().Members {
		b := m.Codebook(c.target.codebook)
		if b.GetState() == pb.CodebookState_CODEBOOK_STATE_READY && (!m.Connected || !m.Link.Reports()) && time.Since(m.LastMessage) < c.cfg.Grace {
			return true
		}
	}
	return false
}

// transient is whether a worker that failed so may serve soon.
func transient(err error) bool {
	of := blameOf(err)
	// Who is full has said when to come again: the caller knows best whether to wait.
	return of == either || of == worker && rpc.RetryAfter(err) == 0
}

// pause waits before all workers are asked again; false: that would be too late. Zero is never.
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

// try asks one worker. asked is false if there is none, and the error is then package route's.
func (c *piece) try() (a answer, asked bool, err error) {
	s := c.fleet.Snapshot()
	var i int
	for {
		i, err = route.PickCodebook(&s.Route, route.CodebookRequest{
			Codebook: c.target.codebook, Digest: c.target.digest, Exclude: c.exclude, Tie: rand.Uint64(),
		})
		if err != nil {
			return a, false, err
		}
		c.exclude = append(c.exclude, s.Route.Workers[i].ID)
		if s.Members[i].Link.Acquire() {
			break
		}
	}
	link, id := s.Members[i].Link, s.Route.Workers[i].ID
	defer link.Release()
	load := &s.Route.Workers[i].Load.Vectors
	load.Begin(c.size)
	defer load.End(c.size)
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
