package auth

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

func TestFieldNumbersMatchTheContract(t *testing.T) {
	fields := (&pb.GenerateRequest{}).ProtoReflect().Descriptor().Fields()
	require.EqualValues(t, requestPriority, fields.ByName("priority").Number())
	service := pb.File_millrace_v1_inference_proto.Services().ByName("InferenceService")
	for i := range service.Methods().Len() {
		m := service.Methods().Get(i)
		field := m.Input().Fields().ByName("fairness_id")
		require.Equal(t, field != nil, tenanted["/"+string(service.FullName())+"/"+string(m.Name())], m.Name())
		if field != nil {
			require.EqualValues(t, requestTenant, field.Number(), m.Name())
		}
	}
	require.EqualValues(t, requestCache, fields.ByName("cache").Number())
	require.EqualValues(t, cacheSalt, (&pb.CacheOptions{}).ProtoReflect().Descriptor().Fields().ByName("salt").Number())
}

// generating is Generate at a scheduler.
var generating = endpoint{generates: true}

// frame returns a message in two buffers.
func frame(t *testing.T, m proto.Message) *rpc.Frame {
	t.Helper()
	raw, err := proto.Marshal(m)
	require.NoError(t, err)
	half := len(raw) / 2
	return &rpc.Frame{Data: mem.BufferSlice{mem.SliceBuffer(raw[:half]), mem.SliceBuffer(raw[half:])}}
}

func TestStampChecksTenantAndPriority(t *testing.T) {
	five := int32(5)
	own, gateway := &Key{ID: "k", Tenant: "own", Limits: Limits{Priority: &five}}, &Key{ID: "g", Tenant: AnyTenant}
	for name, tc := range map[string]struct {
		key      *Key
		tenant   *string
		priority int32
		reason   string
		want     string // the tenant of an accepted request
	}{
		"names nobody":              {own, nil, 0, "", "own"},
		"names an empty tenant":     {own, proto.String(""), 0, "", "own"},
		"names its own":             {own, proto.String("own"), 5, "", "own"},
		"names another":             {own, proto.String("other"), 0, reason.OtherTenant, ""},
		"names a part of its own":   {own, proto.String("own/1"), 0, reason.OtherTenant, ""},
		"of another case":           {own, proto.String("Own"), 0, reason.OtherTenant, ""},
		"is above its priority":     {own, nil, 6, reason.PriorityTooHigh, ""},
		"is far below its priority": {own, nil, -1 << 31, "", "own"},
		"is far above it":           {own, nil, 1<<31 - 1, reason.PriorityTooHigh, ""},
		"speaks for others":         {gateway, proto.String("other"), 1<<31 - 1, "", "other"},
		"speaks for nobody":         {gateway, nil, 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := &pb.GenerateRequest{Model: "m", Input: &pb.GenerateRequest_Prompt{Prompt: "Once"}, Priority: &tc.priority, FairnessId: tc.tenant}
			bytes := frame(t, in)
			for _, refusal := range []*rpc.Error{tc.key.stamp(bytes, generating), tc.key.stamp(in, generating)} {
				if tc.reason != "" {
					require.Equal(t, tc.reason, refusal.Reason)
					continue
				}
				require.Nil(t, refusal)
			}
			if tc.reason != "" {
				return
			}
			require.Equal(t, tc.want, in.GetFairnessId())
			got := &pb.GenerateRequest{}
			require.NoError(t, proto.Unmarshal(bytes.Data.Materialize(), got))
			require.True(t, proto.Equal(in, got), "%v\n%v", in, got)
			bytes.Free()
		})
	}
	text, ids := &pb.TokenizeRequest{}, &pb.DetokenizeRequest{FairnessId: proto.String("other")}
	require.Nil(t, own.stamp(text, endpoint{}))
	require.Equal(t, "own", text.GetFairnessId())
	require.Equal(t, reason.OtherTenant, own.stamp(ids, endpoint{}).Reason)
	bytes := frame(t, &pb.TokenizeRequest{Model: "m"})
	require.Nil(t, own.stamp(bytes, endpoint{}))
	require.NoError(t, proto.Unmarshal(bytes.Data.Materialize(), text))
	require.True(t, proto.Equal(&pb.TokenizeRequest{Model: "m", FairnessId: proto.String("own")}, text), "it has no salt: %v", text)
	bytes.Free()
	embed, rerank := &pb.EmbedRequest{}, &pb.RerankRequest{Priority: proto.Int32(9)}
	require.Nil(t, own.stamp(embed, endpoint{}))
	require.Equal(t, "own", embed.GetFairnessId())
	require.Equal(t, reason.PriorityTooHigh, own.stamp(rerank, endpoint{}).Reason)
	require.Nil(t, own.stamp(&pb.ListModelsRequest{}, endpoint{}), "no other message has a tenant")
}

func TestStampUsesTheLastTenant(t *testing.T) {
	k := &Key{ID: "k", Tenant: "own", Limits: Limits{Priority: new(int32)}}
	raw := protowire.AppendString(protowire.AppendTag(nil, requestTenant, protowire.BytesType), "own")
	raw = protowire.AppendString(protowire.AppendTag(raw, requestTenant, protowire.BytesType), "other")
	refusal := k.stamp(&rpc.Frame{Data: mem.BufferSlice{mem.SliceBuffer(raw)}}, generating)
	require.NotNil(t, refusal)
	require.Equal(t, reason.OtherTenant, refusal.Reason)
}

// TestStampLeavesTruncatedRequests checks that nothing is appended to a truncated message, which
// would be read as the rest of its last field.
func TestStampLeavesTruncatedRequests(t *testing.T) {
	k := &Key{ID: "k", Tenant: "own", Limits: Limits{Priority: new(int32)}}
	stamp := protowire.AppendString(protowire.AppendTag(nil, requestTenant, protowire.BytesType), k.Tenant)
	for name, field := range map[string]protowire.Number{"the prompt": 4, "the tenant": requestTenant} {
		t.Run(name, func(t *testing.T) {
			raw := protowire.AppendTag(nil, field, protowire.BytesType)
			raw = append(protowire.AppendVarint(raw, uint64(len("mine")+len(stamp))), "mine"...)
			in := &rpc.Frame{Data: mem.BufferSlice{mem.SliceBuffer(raw)}}
			require.Nil(t, k.stamp(in, generating))
			require.Error(t, proto.Unmarshal(in.Data.Materialize(), &pb.GenerateRequest{}))
		})
	}
}

func FuzzReadFields(f *testing.F) {
	for _, in := range []*pb.GenerateRequest{
		{}, {Priority: proto.Int32(-7), FairnessId: proto.String("a")}, {Priority: proto.Int32(9), Model: "m"},
		{Cache: &pb.CacheOptions{Salt: proto.String("s"), BypassPrefixCache: proto.Bool(true)}},
	} {
		raw, err := proto.Marshal(in)
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Add([]byte("\x6a\x09mine"))
	key := &Key{ID: "k", Tenant: "own"}
	f.Fuzz(func(t *testing.T, raw []byte) {
		in := &pb.GenerateRequest{}
		bad := proto.Unmarshal(raw, in) != nil
		of, _ := readFields(raw)
		if !bad {
			require.Equal(t, requestFields{in.GetPriority(), in.GetFairnessId(), in.GetCache().GetSalt()}, of)
		}
		salt := in.GetCache().GetSalt()
		stamped := &rpc.Frame{Data: mem.BufferSlice{mem.SliceBuffer(raw)}}
		if key.stamp(stamped, generating) != nil {
			return
		}
		err := proto.Unmarshal(stamped.Data.Materialize(), in)
		require.Equal(t, bad, err != nil, "what is no message does not become one")
		if !bad {
			require.Equal(t, key.Tenant, in.GetFairnessId())
			if len(salt) <= maxSalt {
				require.Equal(t, saltOf(key.Tenant, salt), in.GetCache().GetSalt())
			}
		}
	})
}
