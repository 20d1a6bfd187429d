package rpc_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// with appends a field with bytes to an encoded message.
func with(raw []byte, num protowire.Number, body []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(raw, num, protowire.BytesType), body)
}

func TestDecodeTakesWhatItKnows(t *testing.T) {
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

func FuzzDecodeNeverPanicsAndRefusesWithAReason(f *testing.F) {
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
