package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/auth"
)

// cached_tokens reports what the caller's own tenant has sent, and nothing of another tenant, unless the keys of both share.
func TestTenantsSeeNoOthersCachedTokens(t *testing.T) {
	k := keep(t, 1, func(f *keyFile) {
		for _, id := range []string{"a", "b"} {
			f.add(id, nil, auth.Generate)
		}
		for _, id := range []string{"s", "s2"} {
			f.add(id, func(k *auth.Key) { k.SharesPrefixes = true }, auth.Generate)
		}
	})
	in := ask(long, 1)
	in.Input = &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("Once upon a time there was a little mill. ", 8)}
	cached := func(id string) uint32 {
		t.Helper()
		stream, err := k.by(t, id).Generate(t.Context(), in)
		require.NoError(t, err)
		first, err := stream.Recv()
		require.NoError(t, err)
		for err == nil {
			_, err = stream.Recv()
		}
		return first.GetStarted().GetCachedTokens()
	}
	require.Zero(t, cached("a"))
	own := cached("a")
	require.Positive(t, own)
	require.Zero(t, cached("b"), "what a has sent")
	require.Equal(t, own, cached("b"))
	require.Zero(t, cached("s"), "what a and b have sent")
	require.Equal(t, own, cached("s2"), "what s has sent")
}
