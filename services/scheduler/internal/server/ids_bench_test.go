package server

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func BenchmarkLongPromptOfIDs(b *testing.B) {
	random := rand.New(rand.NewPCG(9, 10))
	ids := make([]uint32, 55_000)
	for i := range ids {
		ids[i] = uint32(random.IntN(32000))
	}
	raw, err := proto.Marshal(&pb.GenerateRequest{Model: "m", Input: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}}})
	require.NoError(b, err)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := generation(b.Context(), raw); err != nil {
			b.Fatal(err)
		}
	}
}
