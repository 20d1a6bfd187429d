package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// content is the content of a stream without its framing, timings and the names of request and
// worker.
type content struct {
	Started  string
	Progress bool
	Prompt   *pb.PromptTokens
	Outputs  map[uint32]*pb.Tokens
	Finished map[uint32]string
}

// listen reads a call to its end.
func listen(ctx context.Context, on pb.InferenceServiceClient, in *pb.GenerateRequest) (*content, error) {
	stream, err := on.Generate(ctx, in)
	if err != nil {
		return nil, err
	}
	all := &content{Prompt: &pb.PromptTokens{}, Outputs: map[uint32]*pb.Tokens{}, Finished: map[uint32]string{}}
	progress := uint32(0)
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		switch e := event.GetEvent().(type) {
		case *pb.GenerateResponse_Started:
			if all.Started != "" {
				return all, errors.New("started came twice")
			}
			e.Started.WorkerId, e.Started.Incarnation, e.Started.RequestId = "", "", ""
			all.Started = text(e.Started)
		case *pb.GenerateResponse_Progress:
			if e.Progress.GetPrefilledTokens() < progress {
				return all, fmt.Errorf("progress %v after %d", e.Progress, progress)
			}
			progress, all.Progress = e.Progress.GetPrefilledTokens(), true
		case *pb.GenerateResponse_Prompt:
			if had := max(len(all.Prompt.GetTokenIds()), len(all.Prompt.GetDetails())); int(e.Prompt.GetTokenIndex()) != had {
				return all, fmt.Errorf("prompt tokens from %d after %d", e.Prompt.GetTokenIndex(), had)
			}
			all.Prompt.TokenIds = append(all.Prompt.TokenIds, e.Prompt.GetTokenIds()...)
			all.Prompt.Details = append(all.Prompt.Details, e.Prompt.GetDetails()...)
		case *pb.GenerateResponse_Tokens:
			o := all.Outputs[e.Tokens.GetOutputIndex()]
			if o == nil {
				o = &pb.Tokens{TokenIndex: e.Tokens.GetTokenIndex()}
				all.Outputs[e.Tokens.GetOutputIndex()] = o
			}
			if int(e.Tokens.GetTokenIndex()) != int(o.GetTokenIndex())+len(o.GetTokenIds()) {
				return all, fmt.Errorf("tokens from %d after %d", e.Tokens.GetTokenIndex(), len(o.GetTokenIds()))
			}
			o.TokenIds = append(o.TokenIds, e.Tokens.GetTokenIds()...)
			o.Text += e.Tokens.GetText()
			o.Details = append(o.Details, e.Tokens.GetDetails()...)
		case *pb.GenerateResponse_Finished:
			e.Finished.Timings = nil
			all.Finished[e.Finished.GetOutputIndex()] += text(e.Finished) // a second end would differ
		}
	}
}

// text returns a message as comparable text.
func text(m proto.Message) string {
	raw, _ := prototext.MarshalOptions{Multiline: true}.Marshal(m) // a decoded message can be encoded
	return string(raw)
}

// tokens returns the number of tokens of the stream.
func (a *content) tokens() (n int) {
	for _, o := range a.Outputs {
		n += len(o.GetTokenIds())
	}
	return n
}

// differs describes the first difference of two streams, or returns "".
func (a *content) differs(b *content) string {
	switch {
	case a.Started != b.Started:
		return fmt.Sprintf("started %s and not %s", b.Started, a.Started)
	case len(a.Outputs) == 1 && a.Progress != b.Progress: // of several continuations each may report it, before or after another's tokens
		return "progress"
	case !proto.Equal(a.Prompt, b.Prompt):
		return fmt.Sprintf("prompt %v and not %v", b.Prompt, a.Prompt)
	case len(a.Outputs) != len(b.Outputs):
		return fmt.Sprintf("%d outputs and not %d", len(b.Outputs), len(a.Outputs))
	case len(a.Finished) != len(b.Finished):
		return fmt.Sprintf("%d ends and not %d", len(b.Finished), len(a.Finished))
	}
	for i := range a.Outputs {
		if !proto.Equal(a.Outputs[i], b.Outputs[i]) { // bits of logprobs included
			return fmt.Sprintf("output %d %v and not %v", i, b.Outputs[i], a.Outputs[i])
		}
	}
	for i := range a.Finished {
		if a.Finished[i] != b.Finished[i] {
			return fmt.Sprintf("end %s and not %s", b.Finished[i], a.Finished[i])
		}
	}
	return ""
}

// knobs returns requests that together use every option of sampling, stopping and response.
// firstText is the text of the plain one.
func knobs(firstText string) map[string]func(*pb.GenerateRequest) {
	bytesOf := func(text string) (ids []uint32) { // tokens of one byte, so that characters are split
		for _, b := range []byte(text) {
			ids = append(ids, 3+uint32(b))
		}
		return ids
	}
	stop := firstText[len(firstText)/2 : len(firstText)/2+5]
	return map[string]func(*pb.GenerateRequest){
		"greedy":      func(r *pb.GenerateRequest) { r.Sampling.Temperature = ptr(float32(0)) },
		"temperature": func(r *pb.GenerateRequest) { r.Sampling.Temperature = ptr(float32(1.7)) },
		"top_k":       func(r *pb.GenerateRequest) { r.Sampling.TopK = ptr(int32(7)) },
		"top_p":       func(r *pb.GenerateRequest) { r.Sampling.TopP = ptr(float32(0.8)) },
		"min_p":       func(r *pb.GenerateRequest) { r.Sampling.MinP = ptr(float32(0.05)) },
		"typical_p":   func(r *pb.GenerateRequest) { r.Sampling.TypicalP = ptr(float32(0.7)) },
		"penalties": func(r *pb.GenerateRequest) {
			r.Sampling.RepetitionPenalty, r.Sampling.PresencePenalty = ptr(float32(1.3)), ptr(float32(0.4))
			r.Sampling.FrequencyPenalty, r.Sampling.PenaltyWindow = ptr(float32(0.2)), ptr(int32(6))
		},
		"bias":       func(r *pb.GenerateRequest) { r.Sampling.LogitBias = map[int32]float32{300: 4, 301: -2, 400: 3} },
		"drawn seed": func(r *pb.GenerateRequest) { r.Sampling.TopK = ptr(int32(1)); r.Sampling.Seed = nil },
		"sequences": func(r *pb.GenerateRequest) {
			r.Sampling.NumSequences = ptr(int32(3))
			r.Stopping.MaxTokens = ptr(int32(5))
		},
		"split bytes": func(r *pb.GenerateRequest) { r.Sampling.AllowedTokens = &pb.TokenIds{Ids: bytesOf("漢字é")} },
		"whole characters of split bytes": func(r *pb.GenerateRequest) {
			r.Sampling.AllowedTokens = &pb.TokenIds{Ids: bytesOf("\xc3\xa9")}
		},
		"min_tokens": func(r *pb.GenerateRequest) { r.Stopping.MinTokens, r.Stopping.IgnoreEos = ptr(int32(6)), nil },
		"stop":       func(r *pb.GenerateRequest) { r.Stopping.Stop = []string{"never to be seen", stop} },
		"stop, included": func(r *pb.GenerateRequest) {
			r.Stopping.Stop, r.Stopping.IncludeStopInOutput = []string{stop}, ptr(true)
		},
		"held back": func(r *pb.GenerateRequest) { r.Stopping.Stop = []string{stop + "never", firstText + "!"} },
		"stop tokens": func(r *pb.GenerateRequest) {
			r.Sampling.AllowedTokens = &pb.TokenIds{Ids: []uint32{300, 301, 302, 303, 304, 305, 306}}
			r.Stopping.StopTokenIds, r.Stopping.IncludeStopInOutput = []uint32{304}, ptr(true)
		},
		"logprobs": func(r *pb.GenerateRequest) {
			r.Response = &pb.ResponseOptions{OutputLogprobs: ptr(true), OutputCandidates: ptr(int32(3))}
		},
		"ids only": func(r *pb.GenerateRequest) { r.Response = &pb.ResponseOptions{TokenIdsOnly: ptr(true)} },
		"echo and scores": func(r *pb.GenerateRequest) {
			r.Response = &pb.ResponseOptions{EchoPrompt: ptr(true), PromptLogprobs: ptr(int32(2)), Progress: ptr(true)}
		},
		"the prompt alone": func(r *pb.GenerateRequest) {
			r.Response, r.Stopping.MaxTokens = &pb.ResponseOptions{EchoPrompt: ptr(true), PromptLogprobs: ptr(int32(0))}, ptr(int32(0))
		},
		"decode kernels": func(r *pb.GenerateRequest) { r.PromptClass = ptr(pb.KernelClass_KERNEL_CLASS_DECODE) },
		"all at once": func(r *pb.GenerateRequest) {
			r.Sampling.NumSequences, r.Sampling.TopP, r.Sampling.MinP = ptr(int32(2)), ptr(float32(0.9)), ptr(float32(0.01))
			r.Sampling.RepetitionPenalty, r.Sampling.LogitBias = ptr(float32(1.1)), map[int32]float32{300: 2}
			r.Stopping.Stop, r.Stopping.MaxTokens = []string{"the ", "never"}, ptr(int32(8))
			r.Response = &pb.ResponseOptions{EchoPrompt: ptr(true), PromptLogprobs: ptr(int32(1)), OutputLogprobs: ptr(true),
				OutputCandidates: ptr(int32(1)), Progress: ptr(true)}
		},
	}
}

// base is the request that knobs change. It bypasses the prefix cache, so that cached tokens do not
// differ.
func base() *pb.GenerateRequest {
	return &pb.GenerateRequest{
		Model: stories, Input: &pb.GenerateRequest_Prompt{Prompt: "Once upon a time there was"},
		Sampling: &pb.Sampling{Seed: ptr(uint64(5))}, Stopping: &pb.Stopping{MaxTokens: ptr(int32(12)), IgnoreEos: ptr(true)},
		Cache: &pb.CacheOptions{BypassPrefixCache: ptr(true)},
	}
}

func TestStreamOutlivesItsWorker(t *testing.T) {
	// The worker is lost at every place of the stream.
	t.Parallel()
	for engine, device := range map[string]string{"cpu": "cpu", "sim": "sim:step=300us,prefill=0s,decode=0s"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			w := startWorker(t, "w1", "--device", device, "--load", stories, "--max-sequences", "16")
			fronts, cuts := startCutters(t, w, 2)
			s := startScheduler(t, fronts)
			s.untilServed(t, stories, 2)
			plain, err := listen(within(t), w.infer, base())
			require.NoError(t, err)
			cases := knobs(plain.Outputs[0].GetText())
			streams, begun := 0, time.Now()
			for name, change := range cases {
				in, label := base(), strings.ReplaceAll(name, " ", "_")
				change(in)
				want, err := listen(within(t), w.infer, in)
				require.NoError(t, err, name)
				group, ctx := errgroup.WithContext(within(t))
				group.SetLimit(8)
				once := func(id string, in *pb.GenerateRequest, want *content, atLeast int) {
					in = proto.CloneOf(in)
					in.RequestId = &id
					streams++
					group.Go(func() error {
						got, err := listen(ctx, s.infer, in)
						switch {
						case err != nil:
							return fmt.Errorf("%s: %w", id, err)
						case cuts.of(id) < atLeast:
							return fmt.Errorf("%s was broken off %d times", id, cuts.of(id))
						}
						if in.Sampling.Seed == nil { // a seed is drawn, and top_k 1 makes it irrelevant
							got.Started = want.Started
						}
						if d := want.differs(got); d != "" {
							return fmt.Errorf("%s: %s", id, d)
						}
						return nil
					})
				}
				for k := -1; k <= want.tokens(); k++ {
					once(fmt.Sprintf("cut-%d-%s", k, label), in, want, 1)
				}
				once("each-"+label, in, want, 1)
				if in.Sampling.Seed != nil && want.tokens() > 4 { // the client resumes by itself, twice
					resumed := proto.CloneOf(in)
					for i := range uint32(max(1, in.GetSampling().GetNumSequences())) {
						resumed.Resume = append(resumed.Resume, &pb.Resume{OutputIndex: i, TokenIds: slices.Clone(want.Outputs[i].GetTokenIds()[:2])})
					}
					rest, err := listen(within(t), w.infer, resumed)
					require.NoError(t, err, name)
					for k := -1; k <= rest.tokens(); k += 3 {
						once(fmt.Sprintf("cut-%d-again-%s", k, label), resumed, rest, 1)
					}
				}
				require.NoError(t, group.Wait(), name)
			}
			t.Logf("%d streams broken off in %v", streams, time.Since(begun))
		})
	}
}
