package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// maxVectorBytes bounds a message of vectors, and what is answered to one: clients of any make take so much.
const maxVectorBytes = 4 << 20

// answerBytes is what of an answer may be vectors or codes; the rest is for its other fields.
const answerBytes = maxVectorBytes - 1<<10

// inbox receives a caller's messages one ahead of who takes them. Its goroutine ends with the call.
type inbox[M proto.Message] struct {
	messages chan M
	ended    chan error // one: why nothing more comes; io.EOF: the caller has sent everything
	patience time.Duration
	heard    time.Time
}

func newInbox[M proto.Message](ctx context.Context, patience time.Duration, recv func() (M, error)) *inbox[M] {
	in := &inbox[M]{messages: make(chan M), ended: make(chan error, 1), patience: patience, heard: time.Now()}
	go func() {
		for {
			m, err := recv()
			if err == nil {
				err = smallEnough(m)
			}
			if err != nil {
				in.ended <- err
				return
			}
			select {
			case in.messages <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	return in
}

// next is the next message; io.EOF says that there is none. tick, if not nil, is called about once a second meanwhile. Nobody waits
// for longer than the inbox has patience, counted from when hear was called last.
func (in *inbox[M]) next(ctx context.Context, tick func() error) (m M, err error) {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	silent := time.NewTimer(time.Until(in.heard.Add(in.patience)))
	defer silent.Stop()
	for {
		select {
		case m = <-in.messages:
			return m, nil
		case err := <-in.ended:
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return m, err
		case <-every.C:
			if tick == nil {
				continue
			}
			if err := tick(); err != nil {
				return m, err
			}
		case <-silent.C:
			return m, silence(in.patience)
		case <-ctx.Done():
			return m, context.Cause(ctx)
		}
	}
}

// hear says that the caller has sent something of use.
func (in *inbox[M]) hear() { in.heard = time.Now() }

// rest watches what comes behind all that is wanted: another message is what more says, and the end of the sending is none.
func (in *inbox[M]) rest(ctx context.Context, more error) error {
	select {
	case <-in.messages:
		return more
	case err := <-in.ended:
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	case <-ctx.Done():
		return nil
	}
}

func silence(patience time.Duration) error {
	return rpc.Fault{
		Code: codes.DeadlineExceeded, Domain: rpc.WorkerDomain, Reason: reason.SilentSender,
		Message:  fmt.Sprintf("the caller sent nothing for %v, which is as long as this worker waits: send the rest sooner", patience),
		Metadata: map[string]string{"waited_ms": strconv.FormatInt(patience.Milliseconds(), 10)},
	}.Err()
}

// smallEnough refuses a message of vectors above the bound.
func smallEnough(m proto.Message) error {
	n := proto.Size(m)
	if n <= maxVectorBytes {
		return nil
	}
	return rpc.Fault{
		Code: codes.ResourceExhausted, Domain: rpc.WorkerDomain, Reason: reason.MessageTooLarge,
		Message:  fmt.Sprintf("the message has %d bytes, and one of vectors has %d at most: send it in pieces", n, maxVectorBytes),
		Metadata: map[string]string{"bytes": strconv.Itoa(n), "max_bytes": strconv.Itoa(maxVectorBytes)},
	}.Err()
}
