package cli_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestSelftestPassesWhereEveryBitIsRight(t *testing.T) {
	r := serveVectors(t, &vectorServer{})
	require.Equal(t, 0, r.run(t, "vectors", "selftest"), r.err.String())
	for _, text := range []string{
		"1000 rows of 64, 32 codewords: passed\n", "iterations  31, the reference's 31\n", "at most 0 from the reference's in any round\n",
		"codebook    the same bytes\n", "ratio       3.16 % with ids of 4 bytes, 1.99 % with codes of 1\n", "worker      w1\n",
	} {
		require.Contains(t, r.out.String(), text)
	}
	require.Regexp(t, `^iteration   0  T 1\.0000  E 0\.\d{6}  dE \S+  changes 1000\niteration  10  T 0\.5987  .*\niteration  20 .*\niteration  30 .*\n`, r.err.String())
	require.Equal(t, 5, strings.Count(r.err.String(), "\n"))
}

func TestSelftestAsJSONIsOneObject(t *testing.T) {
	r := serveVectors(t, &vectorServer{})
	require.Equal(t, 0, r.run(t, "vectors", "selftest", "--json"), r.err.String())
	require.Empty(t, r.err.String())
	var told map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.out.String()), &told))
	require.Equal(t, true, told["ok"])
	require.EqualValues(t, 31, told["iterations"])
	require.EqualValues(t, 0, told["energy_difference"])
}

func TestSelftestFailsOnEveryDifference(t *testing.T) {
	for name, reply := range map[string]func(*pb.TrainCodebookResponse){
		"an energy that is one bit off": func(m *pb.TrainCodebookResponse) {
			if p := m.GetProgress(); p != nil && p.Iteration != nil && p.GetIteration() == 17 {
				p.Energy = proto.Float64(math.Nextafter(p.GetEnergy(), 1))
			}
		},
		"a round that is not told": func(m *pb.TrainCodebookResponse) {
			if p := m.GetProgress(); p != nil && p.Iteration != nil && p.GetIteration() == 17 {
				p.Iteration = proto.Uint64(16)
			}
		},
		"another number of iterations": func(m *pb.TrainCodebookResponse) {
			if f := m.GetFinished(); f != nil {
				f.Iterations++
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := serveVectors(t, &vectorServer{reply: func(m *pb.TrainCodebookResponse) error {
				reply(m)
				return nil
			}})
			require.Equal(t, 1, r.run(t, "vectors", "selftest"))
			require.Contains(t, r.out.String(), "32 codewords: FAILED\n")
			require.Contains(t, r.err.String(), "differs from the float64 reference")
		})
	}
	t.Run("another codebook", func(t *testing.T) {
		r := serveVectors(t, &vectorServer{draws: 1})
		require.Equal(t, 1, r.run(t, "vectors", "selftest"))
		require.Contains(t, r.out.String(), "codebook    other bytes\n")
	})
}
