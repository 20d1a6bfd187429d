package vectorserver

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

// maxVectorBytes bounds a message of vectors and its answer. Clients in every language accept
// messages of this size.
const maxVectorBytes = 4 << 20

// answerBytes bounds the vectors or codes of an answer; the rest is for its other fields.
const answerBytes = maxVectorBytes - 1<<10

// inbox receives a caller's messages, one ahead of next. Its goroutine ends with the call.
type inbox[M proto.Message] struct {
	messages chan M
	ended    chan error // one error: why no message follows; io.EOF: the caller has sent everything
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

// next returns the next message; io.EOF if there is none. While it waits it calls tick, if not nil,
// about once a second. It waits no longer than patience since the last call of hear.
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

// hear restarts the patience, because the caller has sent something useful.
func (in *inbox[M]) hear() { in.heard = time.Now() }

// rest receives after the last expected message. A further message gives the error more; the end of
// the stream gives none.
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
	return rpc.Error{
		Code: codes.DeadlineExceeded, Domain: rpc.WorkerDomain, Reason: reason.SilentSender,
		Message:  fmt.Sprintf("the caller sent nothing for %v, the limit of this worker: send the rest sooner", patience),
		Metadata: map[string]string{"waited_ms": strconv.FormatInt(patience.Milliseconds(), 10)},
	}.Err()
}

// smallEnough refuses a message above maxVectorBytes.
func smallEnough(m proto.Message) error {
	n := proto.Size(m)
	if n <= maxVectorBytes {
		return nil
	}
	return rpc.Error{
		Code: codes.ResourceExhausted, Domain: rpc.WorkerDomain, Reason: reason.MessageTooLarge,
		Message:  fmt.Sprintf("the message has %d bytes, and the limit for vectors is %d: send it in pieces", n, maxVectorBytes),
		Metadata: map[string]string{"bytes": strconv.Itoa(n), "max_bytes": strconv.Itoa(maxVectorBytes)},
	}.Err()
}
