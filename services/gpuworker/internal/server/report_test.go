package server

import (
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/internal/repotest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestReportHasEveryFieldOfTheDevice(t *testing.T) {
	d := deviceOf(engine.DeviceInfo{
		Kind: "cuda", Name: "a GPU", UUID: "GPU-1", BytesTotal: 1, BytesFree: 2, BytesUsed: [engine.PurposeCount]uint64{3, 4, 5, 6},
		BytesPooled: 7, PoolHits: 8, PoolMisses: 9, LiveBuffers: 10, FailedFrees: 11, TemperatureC: ptr(12), PowerMW: ptr(13),
		Errors: ptr(uint64(14)), CorrectedErrors: ptr(uint64(15)), PhysicalTotal: ptr(uint64(16)), PhysicalFree: ptr(uint64(17)),
		ManagementProblem: "none", Devices: 2,
	}, 18)
	fields := d.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		require.True(t, d.ProtoReflect().Has(fields.Get(i)), "%s is not filled in", fields.Get(i).Name())
	}
	require.True(t, proto.Equal(&pb.DeviceStatus{
		Kind: "cuda", Name: "a GPU", Uuid: "GPU-1", BytesTotal: 1, BytesFree: 2, BytesStaging: 3, BytesWeights: 4, BytesKv: 5,
		BytesWorkspace: 6, BytesPooled: 7, PoolHits: 8, PoolMisses: 9, LiveBuffers: 10, FailedFrees: 11, TemperatureCelsius: ptr(int32(12)),
		PowerMilliwatts: ptr(int32(13)), Errors: ptr(uint64(14)), CorrectedErrors: ptr(uint64(15)), PhysicalBytesTotal: ptr(uint64(16)),
		PhysicalBytesFree: ptr(uint64(17)), ManagementProblem: "none", LeakedBuffers: 18, Devices: 2,
	}, d), "%v", d)
}

func TestUnknownReadingsAreUnset(t *testing.T) {
	// Unset, and not 0.
	d := deviceOf(engine.DeviceInfo{Kind: "sim"}, 0)
	require.Nil(t, d.TemperatureCelsius)
	require.Nil(t, d.PowerMilliwatts)
	require.Nil(t, d.Errors)
	require.Nil(t, d.CorrectedErrors)
	require.Nil(t, d.PhysicalBytesTotal)
	require.Nil(t, d.PhysicalBytesFree)
	known := deviceOf(engine.DeviceInfo{Errors: ptr(uint64(0)), TemperatureC: ptr(0)}, 0)
	require.NotNil(t, known.Errors)
	require.NotNil(t, known.TemperatureCelsius)
}

func TestAgeOfACheckIsUnsetBeforeTheFirst(t *testing.T) {
	m := statusOfModel(model.Status{Name: "m", State: model.Ready}, 0)
	require.Nil(t, m.GetVerifiedAge())
	require.Nil(t, m.GetVerifyInterval(), "none are wanted")
	m = statusOfModel(model.Status{Name: "m", State: model.Ready, VerifiedAge: 1}, time.Minute)
	require.Equal(t, time.Duration(1), m.GetVerifiedAge().AsDuration())
	require.Equal(t, time.Minute, m.GetVerifyInterval().AsDuration())
	m = statusOfModel(model.Status{Name: "m", State: model.Loading}, time.Minute)
	require.Nil(t, m.GetVerifiedAge())
}

func TestModelWithoutALoopHasNoProgress(t *testing.T) {
	// A model has no loop while it is loaded, and none if its load failed and the device keeps its
	// memory.
	busy := model.Status{Name: "busy", State: model.Ready, Digest: engine.Digest{1}, Runner: engine.RunnerConfig{MaxSequences: 2}, Steps: batch.Stats{
		Steps: 7, RunningStepAge: time.Second, StepBound: 2 * time.Second, Running: 1, Waiting: 2, TotalBlocks: 10, FreeBlocks: 0,
	}}
	ended := busy
	ended.Name, ended.State, ended.Steps = "ended", model.Failed, batch.Stats{StepBound: 2 * time.Second, TotalBlocks: 30, FreeBlocks: 30}
	never := model.Status{Name: "never", State: model.Failed, Problem: model.ErrHeld, Runner: engine.RunnerConfig{MaxSequences: 16}}
	all := []model.Status{busy, ended, never, {Name: "on its way", State: model.Loading}}

	p := progressOf(all)
	require.Equal(t, time.Second, p.GetRunningStepAge().AsDuration(), "%v", p)
	require.Equal(t, 2*time.Second, p.GetStepBound().AsDuration())
	require.EqualValues(t, 7, p.GetSteps())

	load := (&rates{}).load(all)
	require.EqualValues(t, 10, load.GetTotalBlocks())
	require.Zero(t, load.GetFreeBlocks())

	balancer := loadOf(all, engine.DeviceInfo{})
	require.Equal(t, balancer.KVBlocks, balancer.HeldBlocks, "the cache of a failed model does not count")
	require.Equal(t, balancer.Places, balancer.Waiting)

	require.Empty(t, statusOfModel(never, 0).GetModelDigest())
	require.Empty(t, statusOfModel(never, 0).GetLoaded().GetModelDigest())
	require.Len(t, statusOfModel(busy, 0).GetModelDigest(), 64)
}

func TestCountersOutliveTheirLoops(t *testing.T) {
	loop := func(name string, n uint64) model.Status {
		return model.Status{Name: name, Steps: batch.Stats{
			GeneratedTokens: n, PrefilledTokens: 2 * n, Cancelled: 3 * n, Preempted: 4 * n, StepsAfterCancel: 5 * n,
			RefusedSteps: 6 * n,
		}}
	}
	r := &rates{}
	sums := func(models ...model.Status) [5]uint64 {
		r.sample(models)
		l := r.load(models)
		return [5]uint64{
			l.GetGeneratedTokens(), l.GetCancelled(), l.GetPreempted(), l.GetStepsAfterCancel(), l.GetRefusedSteps(),
		}
	}
	for _, step := range []struct {
		name   string
		models []model.Status
		want   uint64
	}{
		{"none yet", nil, 0},
		{"one", []model.Status{loop("a", 10)}, 10},
		{"another beside it", []model.Status{loop("a", 11), loop("b", 100)}, 111},
		{"one unloaded", []model.Status{loop("b", 101)}, 112},
		{"the other loaded anew, between two looks", []model.Status{loop("b", 1)}, 113},
		{"all unloaded", nil, 113},
	} {
		require.Equal(t, [5]uint64{step.want, 3 * step.want, 4 * step.want, 5 * step.want, 6 * step.want},
			sums(step.models...), step.name)
	}
	require.GreaterOrEqual(t, r.load(nil).GetPrefillTokensPerSecond(), 0.0)
	require.False(t, math.IsNaN(r.load(nil).GetTokensPerSecond()))
}

func TestContractNamesEveryCheck(t *testing.T) {
	contract, err := os.ReadFile(repotest.Path("proto/millrace/v1/worker.proto"))
	require.NoError(t, err)
	_, text, found := strings.Cut(string(contract), "message HealthCheck {")
	require.True(t, found)
	text, _, found = strings.Cut(text, "string name = 1;")
	require.True(t, found)
	var named []string
	for _, quoted := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(text, -1) {
		named = append(named, strings.TrimSuffix(strings.TrimSuffix(quoted[1], "/MODEL"), "/CODEBOOK"))
	}
	require.ElementsMatch(t, []string{
		health.CheckDevice, health.CheckManagement, health.CheckMemoryErrors, health.CheckMemoryPressure, health.CheckFrees,
		health.CheckLeaks, health.CheckStepProgress, health.CheckModel, health.CheckResidency,
		health.CheckCodebook, health.CheckCodebookResidency,
	}, named)
}
