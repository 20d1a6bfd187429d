package server

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/modeltest"
	"github.com/millrace/millrace/internal/repotest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// edit loads a copy of the stories model with changed metadata.
func (w *worker) edit(t *testing.T, name string, metadata map[string]any) {
	t.Helper()
	modeltest.WithMetadata(t, repotest.Path("testdata/models/stories-5m-q8_0.gguf"), filepath.Join(w.dir, name+".gguf"), metadata)
	_, _, err := w.manager.Load(t.Context(), name, model.Options{}, nil)
	require.NoError(t, err)
}

// listed returns the model in the response of ListModels.
func (w *worker) listed(t *testing.T, name string) *pb.ModelInfo {
	t.Helper()
	out, err := w.models.ListModels(t.Context(), &pb.ListModelsRequest{})
	require.NoError(t, err)
	for _, m := range out.GetModels() {
		if m.GetName() == name {
			return m
		}
	}
	require.Fail(t, "no such model", name)
	return nil
}

func TestSuppressedTokensAreNeverGenerated(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	in := prompted("Once upon a time", 24)
	plain := w.generate(t.Context(), t, in)
	require.NoError(t, plain.err)
	var ids []int32
	seen := map[uint32]bool{}
	for _, id := range plain.ids[0] {
		seen[id] = true
		ids = append(ids, int32(id))
	}
	w.edit(t, "suppressing", map[string]any{"tokenizer.ggml.suppress_tokens": append(ids, -1, 1<<30)})
	require.Len(t, w.listed(t, "suppressing").GetCapabilities().GetSuppressedTokenIds(), len(seen))
	in.Model = "suppressing"
	in.Sampling.LogitBias = map[int32]float32{int32(plain.ids[0][0]): 100}
	whole := w.generate(t.Context(), t, in)
	require.NoError(t, whole.err)
	require.Len(t, whole.ids[0], 24)
	for _, id := range whole.ids[0] {
		require.False(t, seen[id], "token %d", id)
	}
	for _, k := range []int{1, 7, 23} {
		again := proto.Clone(in).(*pb.GenerateRequest)
		again.Resume = []*pb.Resume{{TokenIds: whole.ids[0][:k]}}
		got := w.generate(t.Context(), t, again)
		require.NoError(t, got.err)
		require.Equal(t, whole.ids[0][k:], got.ids[0], "resumed after %d", k)
	}
	in.Sampling.LogitBias, in.Sampling.AllowedTokens = nil, &pb.TokenIds{Ids: plain.ids[0]}
	none := w.generate(t.Context(), t, in)
	require.Equal(t, codes.FailedPrecondition, status.Code(none.err))
	require.Equal(t, reason.NoTokenLeft, rpc.Reason(none.err))
}

func TestModelWithoutVocabularyTakesTokenIDs(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	for name, kind := range map[string]string{"bare": "no_vocab", "none": "none"} {
		w.edit(t, name, map[string]any{"tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": nil, "llama.vocab_size": nil})
		require.False(t, w.listed(t, name).GetCapabilities().GetTokenizer())
		in := prompted("Once", 4)
		in.Model = name
		refused := w.generate(t.Context(), t, in)
		require.Equal(t, codes.FailedPrecondition, status.Code(refused.err))
		require.Equal(t, reason.NoTokenizer, rpc.Reason(refused.err))
		require.ErrorContains(t, refused.err, "give token_ids and set response.token_ids_only")
		in.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: []uint32{1, 2, 3}}}
		in.Response = &pb.ResponseOptions{TokenIdsOnly: ptr(true)}
		served := w.generate(t.Context(), t, in)
		require.NoError(t, served.err)
		require.Len(t, served.ids[0], 4)
	}
}
