package translate_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

func TestSeedsHaveTheirBits(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "18446744073709551615": 1<<64 - 1, "-1": 1<<64 - 1, "-9223372036854775808": 1 << 63} {
		var in struct {
			Seed *translate.Seed `json:"seed"`
		}
		require.NoError(t, strictjson.Decode([]byte(`{"seed":`+text+`}`), &in, nil))
		require.Equal(t, &translate.Seed{Bits: want, Text: text}, in.Seed)
		require.Same(t, in.Seed, in.Seed.OrDrawn())
	}
	require.Less(t, (*translate.Seed)(nil).OrDrawn().Bits, uint64(1)<<53)
}

func TestTenantIsTheFirstName(t *testing.T) {
	empty, long := "", "é"
	in := &pb.GenerateRequest{}
	translate.SetTenant(in, nil, &empty)
	require.Nil(t, in.FairnessId)
	translate.SetTenant(in, &empty, &long)
	require.Regexp(t, "^sha256:", in.GetFairnessId())
}

func TestPriorityIsThatOfTheTier(t *testing.T) {
	for tier, want := range map[string]int32{"auto": 0, "default": 0, "flex": -1, "priority": 1} {
		in := &pb.GenerateRequest{}
		require.NoError(t, translate.SetPriority(in, &tier))
		require.Equal(t, want, in.GetPriority())
	}
	other := "scale"
	require.ErrorContains(t, translate.SetPriority(&pb.GenerateRequest{}, &other), "must be auto")
}

func TestFailureHasThePathOfTheField(t *testing.T) {
	p := translate.Paths{Messages: []string{"system", "messages[0]"}, Fields: []map[string]string{
		{"stopping.stop": "stop_sequences"}, {"stopping.stop": "other", "fairness_id": "user"},
	}}
	for field, want := range map[string]string{
		"": "", "sampling.top_p": "top_p", "stopping.stop[1]": "stop_sequences[1]", "fairness_id": "user", "sampling.logit_bias[5]": "logit_bias.5",
		"chat.messages[0].role": "system.role", "chat.messages[1]": "messages[0]", "chat.messages[7].role": "messages[7].role", "chat.messages": "messages",
	} {
		err := p.Failure(&httpapi.Failure{Code: codes.InvalidArgument, Field: field})
		require.Equal(t, want, httpapi.FailureOf(err).Param, field)
	}
	require.NoError(t, p.Failure(nil))
	require.ErrorIs(t, p.Failure(errStrict), errStrict)
	require.Equal(t, codes.Aborted, httpapi.FailureOf(p.Failure(status.Error(codes.Aborted, "x"))).Code)
}

var errStrict = &strictjson.Error{Path: "a", Message: "is wrong"}
