package relay

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// count is what scan must find, by decoding.
func count(m *pb.GenerateResponse) (int64, bool) {
	return int64(len(m.GetTokens().GetTokenIds())), m.GetFinished() != nil
}

func TestScanKnowsTheContractsNumbers(t *testing.T) {
	response := (&pb.GenerateResponse{}).ProtoReflect().Descriptor().Fields()
	require.EqualValues(t, responseTokens, response.ByName("tokens").Number())
	require.EqualValues(t, responseFinished, response.ByName("finished").Number())
	require.EqualValues(t, tokensTokenIDs, (&pb.Tokens{}).ProtoReflect().Descriptor().Fields().ByName("token_ids").Number())
}

func TestScanFindsWhatDecodingFinds(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		m := &pb.GenerateResponse{}
		switch rng.IntN(4) {
		case 0:
			m.Event = &pb.GenerateResponse_Started{Started: &pb.Started{WorkerId: "w", Seed: rng.Uint64()}}
		case 1:
			m.Event = &pb.GenerateResponse_Finished{Finished: &pb.Finished{Usage: &pb.Usage{CompletionTokens: rng.Uint32()}}}
		case 2:
			m.Event = &pb.GenerateResponse_Progress{Progress: &pb.Progress{PrefilledTokens: rng.Uint32()}}
		case 3:
			tokens := &pb.Tokens{OutputIndex: rng.Uint32N(4), TokenIndex: rng.Uint32(), Text: " text"}
			for range rng.IntN(6) {
				tokens.TokenIds = append(tokens.TokenIds, rng.Uint32()>>rng.IntN(32))
				tokens.Details = append(tokens.Details, &pb.TokenDetail{Logprob: proto.Float32(-1), Rank: proto.Uint32(3),
					Candidates: []*pb.Candidate{{TokenId: rng.Uint32()}}})
			}
			m.Event = &pb.GenerateResponse_Tokens{Tokens: tokens}
		}
		raw, err := proto.Marshal(m)
		require.NoError(t, err)
		tokens, finished := scan(raw)
		wantTokens, wantFinished := count(m)
		require.Equal(t, wantTokens, tokens, "%v", m)
		require.Equal(t, wantFinished, finished, "%v", m)
	}
}

func TestScanTakesIDsThatAreNotPacked(t *testing.T) {
	tokens, finished := scan([]byte{0x22, 4, 0x18, 1, 0x18, 2})
	require.EqualValues(t, 2, tokens)
	require.False(t, finished)
}

func FuzzScanNeverPanicsNorCountsMoreThanThereIs(f *testing.F) {
	f.Add([]byte{0x22, 4, 0x18, 1, 0x18, 2})
	f.Add([]byte{0x2a, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		tokens, _ := scan(raw)
		require.LessOrEqual(t, tokens, int64(len(raw)))
	})
}

func BenchmarkScan(b *testing.B) {
	raw, err := proto.Marshal(&pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{
		TokenIndex: 100, TokenIds: []uint32{1234}, Text: " token"}}})
	require.NoError(b, err)
	for b.Loop() {
		scan(raw)
	}
}
