package rig

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// answer is what one request gave, over however many attempts. The zero value is one that has not begun.
type answer struct {
	started  *pb.Started // of the last attempt
	ids      []uint32
	text     string
	finished *pb.Finished
}

// add takes an event of an attempt that had `had` tokens when it was begun.
func (a *answer) add(event *pb.GenerateResponse, had int) error {
	switch e := event.GetEvent().(type) {
	case *pb.GenerateResponse_Started:
		if e.Started.Exact != nil && !e.Started.GetExact() {
			return errors.New("it was continued by another class of worker")
		}
		taken := 0
		for _, n := range e.Started.GetResumedTokens() {
			taken += int(n)
		}
		if taken != had {
			return fmt.Errorf("%d tokens were given back and %d taken", had, taken)
		}
		a.started = e.Started
	case *pb.GenerateResponse_Tokens:
		if at := int(e.Tokens.GetTokenIndex()); at != len(a.ids) {
			return fmt.Errorf("token %d came where token %d was due", at, len(a.ids))
		}
		a.ids = append(a.ids, e.Tokens.GetTokenIds()...)
		a.text += e.Tokens.GetText()
	case *pb.GenerateResponse_Finished:
		if a.finished != nil {
			return errors.New("its end came twice")
		}
		a.finished = e.Finished
	}
	return nil
}

// rest is the request for what an answer lacks: the request itself as long as it has not begun.
func (a *answer) rest(in *pb.GenerateRequest) *pb.GenerateRequest {
	if a.started == nil {
		return in
	}
	in = proto.Clone(in).(*pb.GenerateRequest)
	in.ExpectModelDigest, in.ExpectPromptDigest = &a.started.ModelDigest, &a.started.PromptDigest
	if a.started.MaxTokens != nil {
		in.ContextLength = proto.Uint32(a.started.GetPromptTokens() + a.started.GetMaxTokens())
	}
	in.Resume = []*pb.Resume{{TokenIds: a.ids, TextBytes: proto.Uint64(uint64(len(a.text)))}}
	return in
}

// differs says how an answer is another one than wanted; empty if it is the same.
func (a *answer) differs(want *answer) string {
	same := 0
	for same < min(len(a.ids), len(want.ids)) && a.ids[same] == want.ids[same] {
		same++
	}
	switch {
	case !slices.Equal(a.ids, want.ids):
		return fmt.Sprintf("%d tokens, of which the first %d are right, where %d were due", len(a.ids), same, len(want.ids))
	case a.text != want.text:
		return fmt.Sprintf("the right tokens with %d bytes of text where other %d were due", len(a.text), len(want.text))
	case a.finished.GetReason() != want.finished.GetReason():
		return fmt.Sprintf("ended by %v where %v was due", a.finished.GetReason(), want.finished.GetReason())
	case a.finished.GetUsage().GetCompletionTokens() != want.finished.GetUsage().GetCompletionTokens():
		return fmt.Sprintf("a usage of %d tokens where %d was due",
			a.finished.GetUsage().GetCompletionTokens(), want.finished.GetUsage().GetCompletionTokens())
	}
	return ""
}
