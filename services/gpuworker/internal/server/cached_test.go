package server

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestCachedTokensHonourSaltAndBypass(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	long := strings.Repeat("Once upon a time there was a little dog. ", 12)
	in := prompted(long, 8)
	in.Sampling.NumSequences = ptr(int32(2))
	first := w.generate(t.Context(), t, in)
	require.NoError(t, first.err)
	require.Zero(t, first.started.GetCachedTokens())
	salted := proto.Clone(in).(*pb.GenerateRequest)
	salted.Cache = &pb.CacheOptions{Salt: ptr("s")}
	bypassing := proto.Clone(in).(*pb.GenerateRequest)
	bypassing.Cache = &pb.CacheOptions{BypassPrefixCache: ptr(true)}
	resumed := proto.Clone(in).(*pb.GenerateRequest)
	resumed.Resume = []*pb.Resume{{TokenIds: first.ids[0][:3]}, {OutputIndex: 1, TokenIds: first.ids[1]}}
	for _, call := range []struct {
		name   string
		in     *pb.GenerateRequest
		cached bool
	}{
		{"the same once more", in, true},
		{"with a salt", salted, false},
		{"with the same salt", salted, true},
		{"around the cache", bypassing, false},
		{"a resumed one", resumed, true},
	} {
		got := w.generate(t.Context(), t, call.in)
		require.NoError(t, got.err, call.name)
		cached := got.started.GetCachedTokens()
		require.Equal(t, call.cached, cached > 0, "%s: %d cached", call.name, cached)
		require.Less(t, cached, got.started.GetPromptTokens())
		for _, f := range got.finished {
			require.Equal(t, cached, f.GetUsage().GetCachedTokens(), call.name)
		}
		if call.in != resumed {
			require.Equal(t, first.ids, got.ids, call.name)
		}
	}
}
