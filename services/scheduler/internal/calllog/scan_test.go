package calllog

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestFieldNumbersMatchTheContract(t *testing.T) {
	for _, tc := range []struct {
		message proto.Message
		fields  map[protowire.Number]string
	}{
		{&pb.GenerateResponse{}, map[protowire.Number]string{
			eventStarted: "started", eventProgress: "progress", eventPrompt: "prompt", eventTokens: "tokens", eventFinished: "finished"}},
		{&pb.Progress{}, map[protowire.Number]string{progressPrefilled: "prefilled_tokens"}},
		{&pb.PromptTokens{}, map[protowire.Number]string{
			promptTokenIDs: "token_ids", promptDetails: "details", promptTokenIndex: "token_index"}},
		{&pb.Tokens{}, map[protowire.Number]string{
			tokensOutputIndex: "output_index", tokensTokenIndex: "token_index", tokensTokenIDs: "token_ids", tokensText: "text"}},
		{&pb.Finished{}, map[protowire.Number]string{finishedOutputIndex: "output_index"}},
		{&pb.GenerateRequest{}, map[protowire.Number]string{
			requestDigest: "expect_model_digest", requestSampling: "sampling", requestStopping: "stopping", requestResume: "resume",
			requestPromptDigest: "expect_prompt_digest", requestClass: "expect_class_id",
			requestContext: "context_length"}},
		{&pb.Stopping{}, map[protowire.Number]string{stoppingMaxTokens: "max_tokens", stoppingMinTokens: "min_tokens"}},
		{&pb.Sampling{}, map[protowire.Number]string{samplingSeed: "seed"}},
		{&pb.Resume{}, map[protowire.Number]string{
			resumeOutputIndex: "output_index", resumeTokenIDs: "token_ids", resumeFinished: "finished", resumeTextBytes: "text_bytes"}},
	} {
		for number, name := range tc.fields {
			d := tc.message.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name))
			require.NotNil(t, d, name)
			require.Equal(t, number, d.Number(), name)
		}
	}
}

// decoded returns the fields that scan must find, by decoding.
func decoded(m *pb.GenerateResponse) eventFields {
	var s eventFields
	switch e := m.GetEvent().(type) {
	case *pb.GenerateResponse_Started:
		s.event = eventStarted
	case *pb.GenerateResponse_Progress:
		s.event, s.count = eventProgress, int(e.Progress.GetPrefilledTokens())
	case *pb.GenerateResponse_Prompt:
		s.event, s.index = eventPrompt, e.Prompt.GetTokenIndex()
		s.count = max(len(e.Prompt.GetTokenIds()), len(e.Prompt.GetDetails()))
	case *pb.GenerateResponse_Tokens:
		s.event, s.output, s.index = eventTokens, e.Tokens.GetOutputIndex(), e.Tokens.GetTokenIndex()
		s.count, s.text = len(e.Tokens.GetTokenIds()), len(e.Tokens.GetText())
		for _, id := range e.Tokens.GetTokenIds() {
			s.ids = protowire.AppendVarint(s.ids, uint64(id))
		}
	case *pb.GenerateResponse_Finished:
		s.event, s.output = eventFinished, e.Finished.GetOutputIndex()
	}
	return s
}

// varints returns packed ids as a list.
func varints(b []byte) (ids []uint32) {
	for len(b) > 0 {
		id, n := protowire.ConsumeVarint(b)
		ids, b = append(ids, uint32(id)), b[n:]
	}
	return ids
}

// requireScan compares a scan with what decoding finds.
func requireScan(t *testing.T, m *pb.GenerateResponse, raw []byte) {
	t.Helper()
	got, ok := scan(raw)
	require.True(t, ok, "%v", m)
	want := decoded(m)
	require.Equal(t, varints(want.ids), varints(got.ids), "%v", m)
	got.body, got.ids, want.ids = nil, nil, nil
	require.Equal(t, want, got, "%v", m)
}

func TestScanMatchesDecoding(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	details := func() (all []*pb.TokenDetail) {
		for range rng.IntN(3) {
			all = append(all, &pb.TokenDetail{Logprob: proto.Float32(-1), Rank: proto.Uint32(3),
				Candidates: []*pb.Candidate{{TokenId: rng.Uint32(), Logprob: -2}}})
		}
		return all
	}
	ids := func() (all []uint32) {
		for range rng.IntN(6) {
			all = append(all, rng.Uint32()>>rng.IntN(32))
		}
		return all
	}
	for range 3000 {
		m := &pb.GenerateResponse{}
		switch rng.IntN(6) {
		case 0:
			m.Event = &pb.GenerateResponse_Started{Started: &pb.Started{WorkerId: "w", Seed: rng.Uint64()}}
		case 1:
			m.Event = &pb.GenerateResponse_Finished{Finished: &pb.Finished{OutputIndex: rng.Uint32N(16),
				Matched: &pb.Finished_Stop{Stop: "s"}, Usage: &pb.Usage{CompletionTokens: rng.Uint32()}}}
		case 2:
			m.Event = &pb.GenerateResponse_Progress{Progress: &pb.Progress{PrefilledTokens: rng.Uint32()}}
		case 3:
			m.Event = &pb.GenerateResponse_Prompt{Prompt: &pb.PromptTokens{TokenIds: ids(), Details: details(), TokenIndex: rng.Uint32()}}
		case 4:
			m.Event = &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{OutputIndex: rng.Uint32N(4), TokenIndex: rng.Uint32(),
				TokenIds: ids(), Text: " text é"[:rng.IntN(6)], Details: details()}}
		}
		raw, err := proto.Marshal(m)
		require.NoError(t, err)
		requireScan(t, m, raw)
	}
}

func TestScanAcceptsEveryEncoding(t *testing.T) {
	// Decoders must accept these encodings, although no encoder of ours writes them.
	for name, raw := range map[string][]byte{
		"ids that are not packed":        {0x22, 4, 0x18, 1, 0x18, 2},
		"ids in two lists":               {0x22, 6, 0x1a, 1, 1, 0x1a, 1, 2},
		"ids packed and not":             {0x22, 5, 0x1a, 1, 1, 0x18, 2},
		"a field of a later version":     {0x22, 8, 0x1a, 2, 1, 2, 0xc2, 0x3e, 1, 7},
		"an event beside a later field":  {0xc2, 0x3e, 1, 7, 0x22, 4, 0x1a, 2, 1, 2},
		"a number spelled long":          {0x22, 7, 0x10, 0x80, 0x00, 0x1a, 2, 1, 2},
		"an id spelled long":             {0x22, 5, 0x1a, 3, 0x81, 0x00, 2},
		"a tag spelled long":             {0x22, 5, 0x9a, 0x00, 2, 1, 2},
		"an index before and behind ids": {0x22, 8, 0x10, 9, 0x1a, 2, 1, 2, 0x10, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := &pb.GenerateResponse{}
			require.NoError(t, proto.Unmarshal(raw, m))
			require.Equal(t, []uint32{1, 2}, m.GetTokens().GetTokenIds())
			requireScan(t, m, raw)
		})
	}
}

func TestScanRejectsMalformedFrames(t *testing.T) {
	for name, raw := range map[string][]byte{
		"half a tag":                  {0x80},
		"a length beyond the end":     {0x22, 9, 0x1a},
		"an id without an end":        {0x22, 3, 0x1a, 1, 0x80},
		"an id of eleven bytes":       append([]byte{0x22, 13, 0x1a, 11}, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1),
		"two events":                  {0x22, 0, 0x2a, 0},
		"the same event twice":        {0x22, 2, 0x18, 1, 0x22, 2, 0x18, 2},
		"an event that is a number":   {0x20, 1},
		"a group without an end":      {0x22, 1, 0x33},
		"a field with the number 0":   {0x02, 0},
		"a wire type that is not one": {0x27, 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, ok := scan(raw)
			require.False(t, ok)
		})
	}
}

func TestScanSkipsUnknownEvents(t *testing.T) {
	for _, raw := range [][]byte{nil, {0xc2, 0x3e, 1, 7}} {
		s, ok := scan(raw)
		require.True(t, ok)
		require.Zero(t, s.event)
	}
}

// FuzzScan compares scan with decoding over any bytes: a frame that decodes as one event scans to
// the same fields, and none panics.
func FuzzScan(f *testing.F) {
	f.Add([]byte{0x22, 4, 0x18, 1, 0x18, 2})
	f.Add([]byte{0x2a, 0})
	f.Add([]byte{0x1a, 6, 0x0a, 2, 1, 2, 0x12, 0})
	f.Add([]byte{0x22, 8, 0x10, 9, 0x1a, 2, 1, 2, 0x10, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, ok := scan(raw)
		require.LessOrEqual(t, len(s.ids), len(raw)*5)
		if !ok {
			return
		}
		m := &pb.GenerateResponse{}
		if proto.Unmarshal(raw, m) != nil {
			return // text that is not UTF-8, or malformed content of a field that scan skips
		}
		// To a decoder, a field of the right number and the wrong type is unknown, and no event. scan
		// rejects such a frame above.
		if s.event != 0 && m.GetEvent() != nil && len(m.ProtoReflect().GetUnknown()) == 0 {
			requireScan(t, m, raw)
		}
	})
}
