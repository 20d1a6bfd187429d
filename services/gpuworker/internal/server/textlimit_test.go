package server

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/textlimit"
)

func textOf(text string) *pb.TokenizeRequest {
	return &pb.TokenizeRequest{Model: "stories", Input: &pb.TokenizeRequest_Text{Text: text}}
}

func TestTokenizeRefusesALargeResponse(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}), "stories")
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	for name, tc := range map[string]struct {
		text   string
		code   codes.Code
		reason string
	}{
		"a request above the limit, before it comes": {strings.Repeat("a", 15<<20), codes.ResourceExhausted, reason.MessageTooLarge},
		"a text too long for any response":           {strings.Repeat("a", textlimit.Bytes-100), codes.InvalidArgument, reason.ResponseTooLarge},
		"a text of many ids":                         {strings.Repeat("\x01", 1<<20), codes.InvalidArgument, reason.ResponseTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.infer.Tokenize(ctx, textOf(tc.text))
			require.Equal(t, tc.code, status.Code(err), "%v", err)
			require.Equal(t, tc.reason, rpc.Reason(err))
			numbers := rpc.Info(err).GetMetadata()
			require.Equal(t, strconv.Itoa(textlimit.Bytes), numbers["max_bytes"])
			bytes, err := strconv.Atoi(numbers["bytes"])
			require.NoError(t, err)
			require.Greater(t, bytes, textlimit.Bytes)
		})
	}
}

func TestTokenizeAcceptsTextUpToTheLimit(t *testing.T) {
	// The size is computed before the response is made, and must equal that on the wire.
	w := start(t, simDevice(t, sim.Options{}), "stories")
	inst, release, err := w.manager.Acquire("stories")
	require.NoError(t, err)
	defer release()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	for _, text := range []string{"", "a", "Once upon a time", strings.Repeat("Tom \x01 ", 1000), strings.Repeat("Once upon a time ", 50_000)} {
		out, err := w.infer.Tokenize(ctx, textOf(text))
		require.NoError(t, err)
		require.Equal(t, proto.Size(out), tokenizeBytes(inst.Tokenizer, tokens(out.GetTokenIds()), ""))
		require.Equal(t, proto.Size(out)+8, tokenizeBytes(inst.Tokenizer, tokens(out.GetTokenIds()), "render"))
		require.LessOrEqual(t, proto.Size(out), textlimit.Bytes)
	}
}

func TestDetokenizeRefusesALargeResponse(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}), "stories")
	inst, release, err := w.manager.Acquire("stories")
	require.NoError(t, err)
	defer release()
	long, length := uint32(0), 0
	for id := range uint32(inst.Tokenizer.VocabSize()) {
		if piece, _ := inst.Tokenizer.Piece(int32(id)); len(piece) > length && !inst.Tokenizer.IsSpecial(int32(id)) {
			long, length = id, len(piece)
		}
	}
	ids := func(id uint32, n int) *pb.DetokenizeRequest {
		in := &pb.DetokenizeRequest{Model: "stories", TokenIds: make([]uint32, n)}
		for i := range in.TokenIds {
			in.TokenIds[i] = id
		}
		return in
	}
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	fit := (textlimit.Bytes - 5) / length
	out, err := w.infer.Detokenize(ctx, ids(long, fit))
	require.NoError(t, err)
	require.Greater(t, proto.Size(out), textlimit.Bytes-5-length)
	_, err = w.infer.Detokenize(ctx, ids(long, fit+2))
	require.Equal(t, reason.ResponseTooLarge, rpc.Reason(err), "%v", err)
	_, err = w.infer.Detokenize(ctx, ids(long, 8<<20))
	require.Equal(t, reason.MessageTooLarge, rpc.Reason(err), "%v", err)
	// A byte that is not UTF-8 becomes three bytes; only decoding shows it.
	lone := inst.Tokenizer.Encode("\xff", tokenizer.EncodeOptions{})
	_, err = w.infer.Detokenize(ctx, ids(uint32(lone[len(lone)-1]), 1<<20))
	require.NoError(t, err)
	_, err = w.infer.Detokenize(ctx, ids(uint32(lone[len(lone)-1]), 3<<19))
	require.Equal(t, reason.ResponseTooLarge, rpc.Reason(err), "%v", err)
}
