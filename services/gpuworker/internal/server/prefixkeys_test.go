package server

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestPrefixKeysHaveTheirTokens(t *testing.T) {
	ids := &pb.GenerateRequest{Input: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: make([]uint32, 200)}}}
	text := &pb.GenerateRequest{Input: &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("x", 1000)}}
	for name, tc := range map[string]struct {
		in     *pb.GenerateRequest
		prompt int
		want   []int
	}{
		"token ids are counted exactly":             {ids, 200, []int{64, 128, 192}},
		"text by its share of the bytes":            {text, 251, []int{64, 128, 192}},
		"a prefix of less than a token has no key":  {text, 3, []int{1, 2}},
		"a prompt of no tokens has none":            {text, 0, []int{}},
		"a request without a whole chunk has none":  {&pb.GenerateRequest{}, 9, []int{}},
		"rounding goes down, never beyond the rest": {text, 999, []int{255, 511, 767}},
	} {
		t.Run(name, func(t *testing.T) {
			got := []int{}
			for _, k := range prefixKeys(tc.in, tc.prompt) {
				got = append(got, k.Tokens)
			}
			require.Equal(t, tc.want, got)
		})
	}
}
