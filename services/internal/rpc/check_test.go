package rpc_test

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// with appends a field to an encoded message.
func with(raw []byte, num protowire.Number, body []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(raw, num, protowire.BytesType), body)
}

func TestDecodeAcceptsKnownFields(t *testing.T) {
	want := &pb.GenerateRequest{Model: "m", Input: &pb.GenerateRequest_Prompt{Prompt: "é"},
		Sampling: &pb.Sampling{LogitBias: map[int32]float32{3: 1}}}
	raw, err := proto.Marshal(want)
	require.NoError(t, err)
	got := &pb.GenerateRequest{}
	require.NoError(t, rpc.Decode(raw, got, rpc.WorkerDomain))
	require.True(t, proto.Equal(want, got))
}

func TestDecodeRefusesPrecisely(t *testing.T) {
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 1)
	for name, tc := range map[string]struct {
		raw    []byte
		reason string
		meta   map[string]string
	}{
		"an unknown field at the top names message and number": {
			raw: unknown, reason: reason.UnknownField,
			meta: map[string]string{"message": "millrace.v1.GenerateRequest", "field": "900"},
		},
		"an unknown field in a nested message names where it is": {
			raw: with(nil, 7, unknown), reason: reason.UnknownField,
			meta: map[string]string{"message": "millrace.v1.Sampling at sampling", "field": "900"},
		},
		"an unknown field in a list element names the element": {
			raw:    with(nil, 6, append(with(nil, 1, with(nil, 1, []byte("user"))), with(nil, 1, unknown)...)),
			reason: reason.UnknownField,
			meta:   map[string]string{"message": "millrace.v1.ChatMessage at chat.messages[1]", "field": "900"},
		},
		"text that is not UTF-8 names the field": {
			raw: with(nil, 4, []byte{0xff, 'a'}), reason: reason.MalformedMessage,
			meta: map[string]string{"message": "millrace.v1.GenerateRequest", "field": "prompt"},
		},
		"nested text that is not UTF-8 names the path": {
			raw:    with(nil, 6, append(with(nil, 1, with(nil, 1, []byte("user"))), with(nil, 1, with(nil, 2, []byte{0xc3}))...)),
			reason: reason.MalformedMessage,
			meta:   map[string]string{"message": "millrace.v1.GenerateRequest", "field": "chat.messages[1].content"},
		},
		"bytes that are no message name the message": {
			raw: []byte{0x0a, 0xff, 0xff}, reason: reason.MalformedMessage,
			meta: map[string]string{"message": "millrace.v1.GenerateRequest"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := rpc.Decode(tc.raw, &pb.GenerateRequest{}, rpc.WorkerDomain)
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
			require.Equal(t, tc.reason, rpc.Reason(err))
			require.Equal(t, rpc.WorkerDomain, rpc.Domain(err))
			require.Equal(t, tc.meta, rpc.Info(err).GetMetadata())
		})
	}
}

func FuzzDecode(f *testing.F) {
	// Decode must not panic, and every refusal must have a reason.
	f.Add([]byte{0x0a, 0xff, 0xff})
	f.Add(with(nil, 4, []byte{0xff}))
	f.Add(with(nil, 7, with(nil, 900, nil)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if err := rpc.Decode(raw, &pb.GenerateRequest{}, rpc.WorkerDomain); err != nil {
			require.Equal(t, codes.InvalidArgument, status.Code(err))
			require.NotEmpty(t, rpc.Reason(err))
		}
	})
}

// deep returns a request whose variables nest n levels below a key.
func deep(t *testing.T, n int, key string, innermost *structpb.Value) []byte {
	t.Helper()
	for range n {
		innermost = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"": innermost}})
	}
	args := &structpb.Struct{Fields: map[string]*structpb.Value{key: innermost}}
	raw, err := proto.Marshal(&pb.GenerateRequest{Input: &pb.GenerateRequest_Chat{Chat: &pb.Chat{TemplateKwargs: args}}})
	require.NoError(t, err)
	return raw
}

func TestDecodeWalksDeepRequestsCheaply(t *testing.T) {
	// A path for each message would take the length of the key times the depth: a gigabyte for this
	// request of 100 kB.
	raw := deep(t, 3000, strings.Repeat("k", 60000), structpb.NewNullValue())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.NoError(t, rpc.Decode(raw, &pb.GenerateRequest{}, "d"))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))
}

func TestDecodeClipsPathsInStatuses(t *testing.T) {
	odd := structpb.NewNullValue()
	odd.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 1))
	err := rpc.Decode(deep(t, 1000, strings.Repeat("k", 60000), odd), &pb.GenerateRequest{}, "d")
	require.Equal(t, reason.UnknownField, rpc.Reason(err))
	require.Less(t, len(err.Error()), 1000)
	require.ErrorContains(t, err, "google.protobuf.Value at chat.template_kwargs.fields[kkkk")

	raw := deep(t, 1000, "k", structpb.NewStringValue("not UTF-8: @@@@"))
	err = rpc.Decode(bytes.ReplaceAll(raw, []byte("@@@@"), []byte("\xff\xff\xff\xff")), &pb.GenerateRequest{}, "d")
	require.Equal(t, reason.MalformedMessage, rpc.Reason(err))
	require.Less(t, len(err.Error()), 2000)
	require.ErrorContains(t, err, "chat.template_kwargs.fields")
}
