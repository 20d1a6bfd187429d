package server

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/generate"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestScheduleFieldsReachTheStepLoop(t *testing.T) {
	in := prompted("Once upon a time", 5)
	require.Equal(t, generate.Schedule{}, optionsOf(in, nil).Schedule)
	in.Priority, in.FairnessId = ptr(int32(-3)), ptr("tenant 7")
	in.Cache = &pb.CacheOptions{Salt: ptr("s\x00lt"), BypassPrefixCache: ptr(true)}
	require.Equal(t, generate.Schedule{Priority: -3, Tenant: "tenant 7", Salt: "s\x00lt", Bypass: true}, optionsOf(in, nil).Schedule)
}

func TestFairnessIDAndSaltHaveLimits(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}), "stories")
	for name, tc := range map[string]struct {
		change func(*pb.GenerateRequest)
		field  string // "": it is served
	}{
		"a fairness_id of 128 characters": {func(r *pb.GenerateRequest) { r.FairnessId = ptr(strings.Repeat("~", 128)) }, ""},
		"a fairness_id of 129 characters": {func(r *pb.GenerateRequest) { r.FairnessId = ptr(strings.Repeat("a", 129)) }, "fairness_id"},
		"an empty fairness_id":            {func(r *pb.GenerateRequest) { r.FairnessId = ptr("") }, ""},
		"a fairness_id with a space":      {func(r *pb.GenerateRequest) { r.FairnessId = ptr("a b") }, ""},
		"a fairness_id beyond ASCII":      {func(r *pb.GenerateRequest) { r.FairnessId = ptr("é") }, "fairness_id"},
		"a fairness_id with DEL":          {func(r *pb.GenerateRequest) { r.FairnessId = ptr("a\x7f") }, "fairness_id"},
		"a salt of 128 bytes":             {func(r *pb.GenerateRequest) { r.Cache = &pb.CacheOptions{Salt: ptr(strings.Repeat("é", 64))} }, ""},
		"a salt of 129 bytes":             {func(r *pb.GenerateRequest) { r.Cache = &pb.CacheOptions{Salt: ptr(strings.Repeat("é", 64) + "s")} }, "cache.salt"},
		"the highest priority":            {func(r *pb.GenerateRequest) { r.Priority = ptr(int32(1<<31 - 1)) }, ""},
		"the lowest priority":             {func(r *pb.GenerateRequest) { r.Priority = ptr(int32(-1 << 31)) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := prompted("Once upon a time", 5)
			tc.change(in)
			got := w.generate(t.Context(), t, in)
			if tc.field == "" {
				require.NoError(t, got.err)
				return
			}
			require.Equal(t, codes.InvalidArgument, status.Code(got.err))
			require.Equal(t, []string{tc.field}, violated(got.err))
		})
	}
}
