package vectorcli_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

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
	require.Regexp(t, `with momentum, [1-9]\d* merges and [1-9]\d* splits: passed\n(.*\n){2}  iterations  40, the reference's 40\n`, r.out.String())
	require.Regexp(t, `^iteration   0  T 1\.0000  E 0\.\d{6}  dE \S+  changes 1000\niteration  10  T 0\.5987  .*\niteration  20 .*\niteration  30 .*\n`, r.err.String())
	require.Equal(t, 4+1+1+5+1, strings.Count(r.err.String(), "\n"))
}

// besides makes a server act as two workers alternately: the devices of its first, third, ...
// trainings work for 10 ms, those of the others for 120 ms, and draw wrong seeds if wrong.
func besides(v *vectorServer, wrong bool) *vectorServer {
	trainings := 0
	v.reply = func(m *pb.TrainCodebookResponse) error {
		if m.GetAccepted() != nil {
			trainings++
		}
		beside := trainings%2 == 0
		if v.draws = 0; beside && wrong {
			v.draws = 1
		}
		if f := m.GetFinished(); f != nil {
			f.Timings = &pb.TrainingTimings{Device: durationpb.New(10 * time.Millisecond)}
			if beside {
				f.Timings.Device = durationpb.New(120 * time.Millisecond)
			}
		}
		return nil
	}
	return v
}

func TestSelftestPrintsSpeedUps(t *testing.T) {
	r := serveVectors(t, besides(&vectorServer{}, false))
	require.Equal(t, 0, r.run(t, "vectors", "selftest", "--beside", r.target), r.err.String())
	require.Equal(t, 2, strings.Count(r.out.String(), "beside      12.0 over the device of w1, which worked 120 ms: the same bytes\n"), r.out.String())
	require.Regexp(t, `speed-up    \d+\.\d over the reference, one thread of float64 here\n`, r.out.String())
}

func TestSelftestComparesSecondWorker(t *testing.T) {
	r := serveVectors(t, besides(&vectorServer{}, true))
	require.Equal(t, 1, r.run(t, "vectors", "selftest", "--beside", r.target))
	require.Contains(t, r.out.String(), "32 codewords: FAILED\n")
	require.Contains(t, r.out.String(), "which worked 120 ms: other bytes\n")
	require.Contains(t, r.out.String(), "codebook    the same bytes\n", "the target's")
}

func TestSelftestAsJSONIsOneObject(t *testing.T) {
	r := serveVectors(t, &vectorServer{})
	require.Equal(t, 0, r.run(t, "vectors", "selftest", "--json"), r.err.String())
	require.Empty(t, r.err.String())
	var out map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.out.String()), &out))
	require.Equal(t, true, out["ok"])
	require.EqualValues(t, 31, out["iterations"])
	require.EqualValues(t, 0, out["energy_difference"])
	require.Contains(t, out, "speedup")
	maintained := out["maintained"].(map[string]any)
	require.EqualValues(t, 40, maintained["iterations"])
	require.Positive(t, maintained["merged"])
	require.Positive(t, maintained["split"])
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
	t.Run("only merges and splits", func(t *testing.T) {
		r := serveVectors(t, &vectorServer{reply: func(m *pb.TrainCodebookResponse) error {
			if p := m.GetProgress(); p != nil && p.GetIteration() == 35 { // the first training has 31
				p.Energy = proto.Float64(p.GetEnergy() + 1)
			}
			return nil
		}})
		require.Equal(t, 1, r.run(t, "vectors", "selftest"))
		require.Contains(t, r.out.String(), "32 codewords: passed\n")
		require.Regexp(t, "with momentum, .* splits: FAILED\n", r.out.String())
	})
	t.Run("another codebook", func(t *testing.T) {
		r := serveVectors(t, &vectorServer{draws: 1})
		require.Equal(t, 1, r.run(t, "vectors", "selftest"))
		require.Contains(t, r.out.String(), "codebook    other bytes\n")
	})
}
