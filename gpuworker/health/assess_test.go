package health

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
)

// broken returns the checks that fail, with their messages. A check has a message exactly when it
// fails.
func broken(t *testing.T, checks []Check) (names []string, messages string) {
	t.Helper()
	for _, c := range checks {
		require.Equal(t, c.OK, c.Message == "", c.Name)
		if !c.OK {
			names = append(names, c.Name)
			messages += c.Message + "\n"
		}
	}
	return names, messages
}

func TestAssess(t *testing.T) {
	steps := func(age time.Duration) batch.Stats {
		return batch.Stats{RunningStepAge: age, StepBound: time.Second}
	}
	good := model.Status{Name: "good", State: model.Ready, Steps: steps(0)}
	busy := model.Status{Name: "busy", State: model.Ready, Steps: steps(time.Second)}
	hung := model.Status{Name: "hung", State: model.Ready, Steps: steps(time.Second + 1)}
	corrupt := model.Status{Name: "bad", State: model.Failed, Problem: model.ErrCorrupt, Steps: steps(0)}
	refused := model.Status{Name: "refused", State: model.Failed, Steps: steps(0),
		Problem: fmt.Errorf("%w: %w", batch.ErrStepFailed, engine.ErrInvalid)}
	dead := model.Status{Name: "dead", State: model.Failed, Steps: steps(0),
		Problem: fmt.Errorf("%w: %w", batch.ErrStepFailed, engine.ErrDevice)}
	held := model.Status{Name: "held", State: model.Failed, Problem: fmt.Errorf("%w: %w", model.ErrHeld, engine.ErrDevice)}
	for name, tc := range map[string]struct {
		in     Input
		want   State
		failed []string
	}{
		"an empty worker is ready":               {Input{}, Ready, nil},
		"a loading model changes nothing":        {Input{Models: []model.Status{{Name: "x", State: model.Loading}}}, Ready, nil},
		"a step at its bound is no fault":        {Input{Models: []model.Status{good, busy}}, Ready, nil},
		"a step beyond its bound is a hang":      {Input{Models: []model.Status{good, hung}}, NotReady, []string{"step-progress/hung"}},
		"a corrupt model degrades":               {Input{Models: []model.Status{corrupt, good}}, Degraded, []string{"model/bad"}},
		"a loop that ended on a good device too": {Input{Models: []model.Status{refused}}, Degraded, []string{"model/refused"}},
		"a dead device outweighs a bad model":    {Input{Models: []model.Status{dead, corrupt}}, NotReady, []string{"model/dead", "model/bad"}},
		"memory that one model keeps is its own": {Input{Models: []model.Status{good, held}}, Degraded, []string{"model/held"}},
		"a failed device needs no model":         {Input{Failure: engine.ErrDevice, Models: []model.Status{good}}, NotReady, []string{"device"}},
		"a bad model does not hide it":           {Input{Failure: engine.ErrDevice, Models: []model.Status{corrupt}}, NotReady, []string{"device", "model/bad"}},
		"starting hides ready":                   {Input{Starting: true, Models: []model.Status{good}}, Starting, nil},
		"starting does not hide a hang":          {Input{Starting: true, Models: []model.Status{hung}}, NotReady, []string{"step-progress/hung"}},
		"draining is told whatever else is true": {Input{Draining: true, Starting: true, Models: []model.Status{hung}}, Draining, []string{"step-progress/hung"}},
	} {
		t.Run(name, func(t *testing.T) {
			state, checks := Assess(tc.in)
			require.Equal(t, tc.want, state)
			names, _ := broken(t, checks)
			require.Equal(t, tc.failed, names)
		})
	}
}

func ptr(n uint64) *uint64 { return &n }

func TestADeviceIsJudgedByWhatItSays(t *testing.T) {
	const gib = 1 << 30
	gpu := engine.DeviceInfo{
		Kind: "cuda", BytesTotal: 136 * gib, BytesFree: 120 * gib, BytesUsed: [engine.PurposeCount]uint64{0, 12 * gib, 3 * gib, 1 * gib},
		Errors: ptr(0), CorrectedErrors: ptr(0), PhysicalTotal: ptr(140 * gib), PhysicalFree: ptr(122 * gib),
	}
	with := func(change func(*engine.DeviceInfo)) engine.DeviceInfo {
		d := gpu
		change(&d)
		return d
	}
	// sharing returns a device on which others left this much memory. Like an engine, it offers at most
	// that and its pool.
	sharing := func(free, pooled uint64) engine.DeviceInfo {
		return with(func(d *engine.DeviceInfo) {
			d.PhysicalFree, d.BytesPooled, d.BytesFree = ptr(free), pooled, min(d.BytesFree, free+pooled)
		})
	}
	for name, tc := range map[string]struct {
		device engine.DeviceInfo
		leaked uint64
		want   State
		failed string
		says   []string
	}{
		"a good one": {device: gpu, want: Ready},
		"one uncorrected error": {
			device: with(func(d *engine.DeviceInfo) { d.Errors = ptr(1) }),
			want:   Degraded, failed: CheckMemoryErrors, says: []string{"1 uncorrected", "drain", "reset"},
		},
		"corrected errors are only told": {
			device: with(func(d *engine.DeviceInfo) { d.CorrectedErrors = ptr(math.MaxUint64 - 1) }), want: Ready,
		},
		"missing readings leave it ready": {
			device: with(func(d *engine.DeviceInfo) {
				d.Errors, d.PhysicalFree, d.ManagementProblem = nil, nil, "libnvidia-ml.so.1 is not found"
			}),
			want: Ready, failed: CheckManagement, says: []string{"libnvidia-ml.so.1 is not found", "nvidia-smi"},
		},
		"a device without such readings lacks none": {
			device: engine.DeviceInfo{Kind: "cpu", ManagementProblem: "there is none"}, want: Ready,
		},
		"frees refused": {
			device: with(func(d *engine.DeviceInfo) { d.FailedFrees = 3 }),
			want:   Degraded, failed: CheckFrees, says: []string{"refused 3 frees", "restart"},
		},
		"buffers leaked": {device: gpu, leaked: 2, want: Degraded, failed: CheckLeaks, says: []string{"2 buffers", "restart"}},
		"a neighbour took 20 GiB": {
			device: sharing(102*gib, 0),
			want:   Degraded, failed: CheckMemoryPressure,
			says: []string{"counts on 120.0 GiB", "has 102.0 GiB", "hold 22.0 GiB of 140.0 GiB", "--memory-limit"},
		},
		"what the driver takes is tolerated": {
			device: sharing(120*gib-140*gib/pressureShare, 0), want: Ready,
		},
		"a byte more is not": {
			device: sharing(120*gib-140*gib/pressureShare-1, 0),
			want:   Degraded, failed: CheckMemoryPressure,
		},
		"of a small device half a GiB is": {
			device: engine.DeviceInfo{BytesTotal: 4 * gib, BytesFree: 4*gib - pressureLeast, PhysicalTotal: ptr(8 * gib),
				PhysicalFree: ptr(4*gib - pressureLeast)}, want: Ready,
		},
		"bytes kept for reuse are free": {
			device: sharing(100*gib, 20*gib), want: Ready,
		},
		"a neighbour on a device of unknown size": {
			device: engine.DeviceInfo{BytesTotal: 4 * gib, PhysicalFree: ptr(0)},
			want:   Degraded, failed: CheckMemoryPressure, says: []string{"counts on 4.0 GiB", "has 0.0 GiB"},
		},
		"one that holds its neighbour off by a limit": {
			device: with(func(d *engine.DeviceInfo) { d.BytesTotal, d.BytesFree, d.PhysicalFree = 40*gib, 24*gib, ptr(25*gib) }), want: Ready,
		},
	} {
		t.Run(name, func(t *testing.T) {
			state, checks := Assess(Input{Device: tc.device, Leaked: tc.leaked})
			require.Equal(t, tc.want, state)
			names, messages := broken(t, checks)
			if tc.failed == "" {
				require.Empty(t, names)
				return
			}
			require.Equal(t, []string{tc.failed}, names)
			for _, text := range tc.says {
				require.Contains(t, messages, text)
			}
		})
	}
}

func TestWhatIsNotKnownIsNotJudged(t *testing.T) {
	names := func(in Input) (names []string) {
		_, checks := Assess(in)
		for _, c := range checks {
			names = append(names, c.Name)
		}
		return names
	}
	require.Equal(t, []string{CheckDevice, CheckFrees, CheckLeaks}, names(Input{Device: engine.DeviceInfo{Kind: "sim"}}))
	require.Equal(t, []string{CheckDevice, CheckManagement, CheckMemoryErrors, CheckMemoryPressure, CheckFrees, CheckLeaks},
		names(Input{Device: engine.DeviceInfo{Kind: "cuda", Errors: ptr(0), PhysicalFree: ptr(0)}}))
	require.Equal(t, []string{CheckDevice}, names(Input{Failure: engine.ErrDevice}), "what it said last is no matter any more")
}

func TestMissingResidencyCheckIsReported(t *testing.T) {
	aged := func(state model.State, age time.Duration) []model.Status {
		return []model.Status{{Name: "m", State: state, VerifiedAge: age, Problem: model.ErrCorrupt}}
	}
	const residency = CheckResidency + "/m"
	for name, tc := range map[string]struct {
		models   []model.Status
		interval time.Duration
		want     string // "", "ok" or a part of the message
	}{
		"in time":                     {aged(model.Ready, 3*time.Minute), time.Minute, "ok"},
		"overdue":                     {aged(model.Ready, 3*time.Minute+1), time.Minute, "last checked 3m0s ago and checks are due every 1m0s"},
		"not wanted":                  {aged(model.Ready, time.Hour), 0, ""},
		"not wanted, as flags say it": {aged(model.Ready, time.Hour), -1, ""},
		"before the first":            {aged(model.Ready, 0), time.Minute, ""},
		"of a model that is leaving":  {aged(model.Draining, time.Hour), time.Minute, ""},
		"of a model that has failed":  {aged(model.Failed, time.Hour), time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			state, checks := Assess(Input{Models: tc.models, VerifyInterval: tc.interval})
			got := ""
			for _, c := range checks {
				switch {
				case c.Name == residency && c.OK:
					got = "ok"
				case c.Name == residency:
					got = c.Message
					require.Equal(t, Degraded, state)
				}
			}
			if tc.want == "" {
				require.Empty(t, got)
			}
			require.Contains(t, got, tc.want)
		})
	}
}
