package calllog

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// carry makes a `finished` tell of the whole call: this worker knows of its own attempt alone. What was cached is what the
// client's `started` said of it. The time of earlier attempts counts as queue where they brought no token. Where they did, only
// the workers that are gone knew queue and prefill apart: all until the first token counts as prefill, all behind it as decode.
func (l *Log) carry(frame []byte) (Verdict, error) {
	m := &pb.GenerateResponse{}
	if err := proto.Unmarshal(frame, m); err != nil {
		return Verdict{}, violation("`finished` cannot be decoded: %v", err)
	}
	f := m.GetFinished()
	if f.Usage != nil {
		f.Usage.CachedTokens = l.cached
	}
	if t := f.Timings; t != nil {
		queue, prefill, decode := t.GetQueue().AsDuration(), t.GetPrefill().AsDuration(), t.GetDecode().AsDuration()
		if l.attempt.behind {
			queue, prefill, decode = 0, l.spent.Before, l.spent.Behind+queue+prefill+decode
		} else {
			queue += l.spent.Before
		}
		f.Timings = &pb.Timings{Queue: durationpb.New(queue), Prefill: durationpb.New(prefill), Decode: durationpb.New(decode)}
	}
	return rewritten(m)
}
