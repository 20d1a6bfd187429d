package protoflags_test

import (
	"math"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/protoflags"
)

func parse(t *testing.T, m proto.Message, fields []string, args ...string) error {
	t.Helper()
	usage := map[string]string{}
	for _, f := range fields {
		usage[f] = "text"
	}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	protoflags.Register(fs, m, usage)
	return fs.Parse(args)
}

func TestFlagsSetFieldsAndLeaveTheOthersUnset(t *testing.T) {
	fields := []string{"temperature", "top_k", "seed", "logit_bias", "allowed_tokens"}
	for name, tc := range map[string]struct {
		args []string
		want *pb.Sampling
	}{
		"no flag sets nothing":                {nil, &pb.Sampling{}},
		"zero is a value":                     {[]string{"--temperature=0"}, &pb.Sampling{Temperature: proto.Float32(0)}},
		"dashes stand for underscores":        {[]string{"--top-k", "40"}, &pb.Sampling{TopK: proto.Int32(40)}},
		"a seed has 64 bits":                  {[]string{"--seed", "18446744073709551615"}, &pb.Sampling{Seed: proto.Uint64(math.MaxUint64)}},
		"a map has several entries":           {[]string{"--logit-bias", "3=1.5,4=-2"}, &pb.Sampling{LogitBias: map[int32]float32{3: 1.5, 4: -2}}},
		"a map grows":                         {[]string{"--logit-bias", "3=1", "--logit-bias", "4=-inf"}, &pb.Sampling{LogitBias: map[int32]float32{3: 1, 4: float32(math.Inf(-1))}}},
		"ids fill their message":              {[]string{"--allowed-tokens", "1, 2"}, &pb.Sampling{AllowedTokens: &pb.TokenIds{Ids: []uint32{1, 2}}}},
		"an empty list of ids is not unset":   {[]string{"--allowed-tokens", ""}, &pb.Sampling{AllowedTokens: &pb.TokenIds{}}},
		"not a number is the server's matter": {[]string{"--temperature=nan"}, &pb.Sampling{Temperature: proto.Float32(float32(math.NaN()))}},
	} {
		t.Run(name, func(t *testing.T) {
			got := &pb.Sampling{}
			require.NoError(t, parse(t, got, fields, tc.args...))
			require.True(t, proto.Equal(tc.want, got), "%v", got)
		})
	}
}

func TestBooleansAndTextsAreFlagsToo(t *testing.T) {
	got := &pb.Stopping{}
	require.NoError(t, parse(t, got, []string{"stop", "ignore_eos", "stop_token_ids"},
		"--stop", "a,b", "--stop", " c", "--ignore-eos", "--stop-token-ids", "1,2", "--stop-token-ids", "3"))
	require.True(t, proto.Equal(&pb.Stopping{Stop: []string{"a,b", " c"}, IgnoreEos: proto.Bool(true), StopTokenIds: []uint32{1, 2, 3}}, got), "%v", got)
	got = &pb.Stopping{}
	require.NoError(t, parse(t, got, []string{"ignore_eos"}, "--ignore-eos=false"))
	require.NotNil(t, got.IgnoreEos)
	require.False(t, got.GetIgnoreEos())
}

func TestWrongValuesAreNamed(t *testing.T) {
	fields := []string{"temperature", "top_k", "seed", "logit_bias", "allowed_tokens"}
	for name, args := range map[string][]string{
		"a word for a number":        {"--temperature", "warm"},
		"a fraction for a count":     {"--top-k", "1.5"},
		"a count beyond 32 bits":     {"--top-k", "4294967296"},
		"a negative seed":            {"--seed", "-1"},
		"a bias without a value":     {"--logit-bias", "3"},
		"a bias for a word":          {"--logit-bias", "x=3"},
		"a bias that is no number":   {"--logit-bias", "3=x"},
		"an id that is no number":    {"--allowed-tokens", "1,x"},
		"an id with too many digits": {"--allowed-tokens", "4294967296"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, parse(t, &pb.Sampling{}, fields, args...), protoflags.ErrValue)
		})
	}
}

func TestSetReplacesOneField(t *testing.T) {
	m := &pb.Sampling{TopK: proto.Int32(3), AllowedTokens: &pb.TokenIds{Ids: []uint32{9}}}
	require.NoError(t, protoflags.Set(m, "top-k", "4"))
	require.NoError(t, protoflags.Set(m, "allowed_tokens", "1"))
	require.True(t, proto.Equal(&pb.Sampling{TopK: proto.Int32(4), AllowedTokens: &pb.TokenIds{Ids: []uint32{1}}}, m), "%v", m)
	require.ErrorIs(t, protoflags.Set(m, "bogus", "4"), protoflags.ErrValue)
}

func TestATextWithoutAFieldIsAMistakeOfTheProgram(t *testing.T) {
	require.PanicsWithValue(t, `millrace.v1.Sampling has no field "bogus"`, func() {
		protoflags.Register(pflag.NewFlagSet("test", pflag.ContinueOnError), &pb.Sampling{}, map[string]string{"bogus": ""})
	})
}

func TestEnumsGoByTheirNames(t *testing.T) {
	fields := []string{"init", "codeword_type", "kind", "energy_tolerance"}
	for text, want := range map[string]pb.CodebookInit{
		"random": pb.CodebookInit_CODEBOOK_INIT_RANDOM, "kmeans-plus-plus": pb.CodebookInit_CODEBOOK_INIT_KMEANS_PLUS_PLUS,
		"KMEANS_PLUS_PLUS": pb.CodebookInit_CODEBOOK_INIT_KMEANS_PLUS_PLUS, "Given": pb.CodebookInit_CODEBOOK_INIT_GIVEN,
	} {
		got := &pb.TrainingConfig{}
		require.NoError(t, parse(t, got, fields, "--init", text), text)
		require.Equal(t, want, got.GetInit(), text)
		require.Equal(t, "CODEBOOK_INIT_", got.GetInit().String()[:14])
	}
	for _, text := range []string{"", "unspecified", "1", "rand", "codebook-init-random"} {
		require.ErrorContains(t, parse(t, &pb.TrainingConfig{}, fields, "--init", text), "random, kmeans-plus-plus, farthest, given", "%q", text)
	}
	require.Equal(t, "farthest", protoflags.Name(pb.CodebookInit_CODEBOOK_INIT_FARTHEST))
	require.Equal(t, "7", protoflags.Name(pb.CodebookInit(7)))
}

func TestTextsAreWhatSetTakes(t *testing.T) {
	want := &pb.TrainingConfig{
		Dimension: 128, Rows: 1 << 40, ElementType: pb.ElementType_ELEMENT_TYPE_I8, Init: pb.CodebookInit_CODEBOOK_INIT_FARTHEST,
		Seed: proto.Uint64(math.MaxUint64), MaxIterations: proto.Uint32(0), EnergyTolerance: proto.Float64(0.1), SaveAs: proto.String("a/b"),
		Annealing: &pb.Annealing{Temperature: proto.Float64(1)},
	}
	texts := protoflags.Texts(want)
	require.Equal(t, map[string]string{
		"dimension": "128", "rows": "1099511627776", "element_type": "i8", "init": "farthest", "seed": "18446744073709551615",
		"max_iterations": "0", "energy_tolerance": "0.1", "save_as": "a/b",
	}, texts)
	got := &pb.TrainingConfig{Annealing: want.GetAnnealing()}
	for field, text := range texts {
		require.NoError(t, protoflags.Set(got, field, text))
	}
	require.True(t, proto.Equal(want, got), "%v", got)
	require.Equal(t, map[string]string{"top_p": "0.1"}, protoflags.Texts(&pb.Sampling{TopP: proto.Float32(0.1)}))
}
