package device

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestParseDriver(t *testing.T) {
	const said = "gpu 0000:0A:00.0\npeak 4916736000000\nallocate 4096 2.5 0.1\nallocate 1048576 101 0.125\n" +
		"copy h2d 1024 100\ncopy h2d 4096 300\ncopy d2h 1024 1e9\ncopy d2d 1024 7\n"
	d, err := parseDriver(strings.NewReader(said))
	require.NoError(t, err)
	require.Equal(t, &Driver{
		Bus: "0000:0a:00.0", Peak: 4916736000000, Allocations: map[uint64]Allocation{4096: {2.5, 0.1}, 1 << 20: {101, 0.125}},
		Copies: map[string]map[uint64]float64{"h2d": {1024: 100, 4096: 300}, "d2h": {1024: 1e9}, "d2d": {1024: 7}},
	}, d)
	require.InDelta(t, 300, d.best("h2d"), 0)
	require.InDelta(t, 100, d.copied("h2d", 1024), 0)
	var none *Driver
	require.Zero(t, none.best("h2d"))
	require.Zero(t, none.copied("h2d", 1024))
	for name, tc := range map[string]struct{ said, want string }{
		"nothing":          {"", `bus ""`},
		"a word of others": {said + "speed 3\n", `line "speed 3"`},
		"a missing number": {said + "allocate 4096 2\n", `line "allocate 4096 2"`},
		"a way too few":    {strings.ReplaceAll(said, "d2d", "d2h"), "2 directions of copies: want 3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseDriver(strings.NewReader(tc.said))
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestParseTheLinkOfAGPU(t *testing.T) {
	const said = "GPU-aa, 00000000:18:00.0, 4, 16\nGPU-bb, 0000ABCD:3B:00.0, 5, 16\nGPU-cc, 00000000:5D:00.0, [N/A], [N/A]\n"
	b, place := parseTool(said, "GPU-bb")
	require.Equal(t, "abcd:3b:00.0", place)
	require.Equal(t, "PCIe Gen5 x16", b.Text)
	require.InEpsilon(t, 63.0e9, b.Peak, 1e-3)
	b, _ = parseTool(said, "GPU-aa")
	require.InEpsilon(t, 31.5e9, b.Peak, 1e-3)
	b, place = parseTool(said, "GPU-cc")
	require.Zero(t, b.Peak)
	require.Equal(t, "0000:5d:00.0", place, "the system may know")
	b, place = parseTool(said, "GPU-dd")
	require.Equal(t, Bus{}, b)
	require.Empty(t, place)

	b = parseSystem("32.0 GT/s PCIe\n", "16\n")
	require.InEpsilon(t, 63.0e9, b.Peak, 1e-3)
	require.InEpsilon(t, 2e9, parseSystem("2.5 GT/s PCIe", "8").Peak, 1e-9)
	require.InEpsilon(t, 121e9, parseSystem("64.0 GT/s PCIe", "16").Peak, 1e-9)
	for _, unknown := range [][2]string{{"", ""}, {"Unknown", "16"}, {"16.0 GT/s PCIe", "0"}, {"16.0 GT/s PCIe", "255"}} {
		b := parseSystem(unknown[0], unknown[1])
		require.Zero(t, b.Peak, "%q", unknown)
		require.Contains(t, b.Text, "not known")
	}
	require.Zero(t, parseSystem("2.5 GT/s PCIe", "16").plausible(50e9).Peak, "a virtual machine's link")
	require.Contains(t, parseSystem("2.5 GT/s PCIe", "16").plausible(50e9).Text, "50.0 were measured")
	require.Positive(t, parseSystem("32.0 GT/s PCIe", "16").plausible(55e9).Peak)
}

func TestRefusalMustNameItsNumbers(t *testing.T) {
	oom := engine.ErrOutOfMemory
	for name, tc := range map[string]struct {
		err  error
		want string // empty: it is clear
	}{
		"all of them":            {fmt.Errorf("alloc 7 bytes: %w: 7 bytes of weights asked, 3 of 9 bytes free", oom), ""},
		"those of the driver":    {fmt.Errorf("%w: 7 bytes asked, 3 of 9 bytes free by the ledger, 2 on the device (native error 2)", oom), ""},
		"of the caller alone":    {fmt.Errorf("alloc 7 bytes: %w: 3 of 9 bytes free", oom), "does not say the 7 bytes asked"},
		"part of a number":       {fmt.Errorf("%w: 70 bytes asked, 3 of 9 bytes free", oom), "does not say the 7 bytes asked"},
		"not what is free":       {fmt.Errorf("%w: 7 bytes asked", oom), "bytes that are free"},
		"another error":          {fmt.Errorf("%w: 7 bytes asked, 3 of 9 bytes free", engine.ErrDevice), "want"},
		"an error of nobody":     {errors.New("7 bytes asked, 3 of 9 bytes free"), "want"},
		"the sentinel by itself": {oom, "does not say the 7 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkRefusal(tc.err, 7)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestSkippedCheckWithAnErrorFails(t *testing.T) {
	var r MemoryReport
	r.add("a", "fine", nil)
	r.add("b", "", errors.Join(skip("no %s", "GPU"), nil))
	require.NoError(t, r.failed())
	r.add("c", "", errors.Join(skip("no GPU"), errors.New("close refused")))
	require.Equal(t, []Check{{"a", "ok", "fine"}, {"b", "skip", "no GPU"}, {"c", "FAIL", "no GPU\nclose refused"}}, r.Checks)
	require.ErrorIs(t, r.failed(), ErrFailed)
	require.ErrorContains(t, r.failed(), "c: no GPU")
}

func TestSizeName(t *testing.T) {
	for bytes, want := range map[uint64]string{1: "1B", 1000: "1000B", 1 << 10: "1KiB", 64 << 20: "64MiB", 1 << 30: "1GiB", 3 << 30: "3GiB"} {
		require.Equal(t, want, sizeName(bytes))
	}
}
