package chaos

import (
	"bytes"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// Same reports how a stream that ended well differs from the undisturbed one of its request: nil, or an error that wraps
// errLost where it is shorter, else errDifferent. Worker, request id, cached tokens and timings may differ.
func (t *Transcript) Same(want *Transcript) error {
	a, b := t.started, want.started
	if a == nil || b == nil {
		return fmt.Errorf("%w: `started`", errLost)
	}
	if a.GetModelDigest() != b.GetModelDigest() || a.GetPromptDigest() != b.GetPromptDigest() || a.GetClassId() != b.GetClassId() ||
		a.GetPromptTokens() != b.GetPromptTokens() || a.GetSeed() != b.GetSeed() {
		return fmt.Errorf("%w: `started` is %v instead of %v", errDifferent, a, b)
	}
	if !slices.Equal(t.prompt.ids, want.prompt.ids) || !slices.Equal(t.prompt.details, want.prompt.details) {
		return fmt.Errorf("%w: what is told of the prompt", errDifferent)
	}
	if len(t.outputs) != len(want.outputs) {
		return fmt.Errorf("%w: %d continuations instead of %d", errLost, len(t.outputs), len(want.outputs))
	}
	for i := range t.outputs {
		if err := t.outputs[i].same(&want.outputs[i]); err != nil {
			return fmt.Errorf("output %d: %w", i, err)
		}
	}
	return nil
}

func (o *output) same(want *output) error {
	for k := range min(len(o.ids), len(want.ids)) {
		if o.ids[k] != want.ids[k] {
			return fmt.Errorf("%w: token %d is %d instead of %d", errDifferent, k, o.ids[k], want.ids[k])
		}
	}
	switch {
	case o.finished == nil:
		return fmt.Errorf("%w: no end behind %d tokens of %d", errLost, len(o.ids), len(want.ids))
	case len(o.ids) < len(want.ids):
		return fmt.Errorf("%w: %d instead of %d", errLost, len(o.ids), len(want.ids))
	case len(o.ids) > len(want.ids):
		return fmt.Errorf("%w: %d tokens instead of %d", errDifferent, len(o.ids), len(want.ids))
	case !bytes.Equal(o.text, want.text):
		return fmt.Errorf("%w: %d bytes of text instead of %d, or others: %.80q instead of %.80q",
			errDifferent, len(o.text), len(want.text), o.text, want.text)
	case !slices.Equal(o.details, want.details):
		return fmt.Errorf("%w: the bits of logprobs, ranks or candidates", errDifferent)
	case !proto.Equal(ending(o.finished), ending(want.finished)):
		return fmt.Errorf("%w: ended by %v instead of %v", errDifferent, ending(o.finished), ending(want.finished))
	}
	return nil
}

// ending is what an end says that must not differ.
func ending(f *pb.Finished) *pb.Finished {
	return &pb.Finished{
		OutputIndex: f.GetOutputIndex(), Reason: f.GetReason(), Matched: f.GetMatched(),
		Usage: &pb.Usage{PromptTokens: f.GetUsage().GetPromptTokens(), CompletionTokens: f.GetUsage().GetCompletionTokens()},
	}
}
