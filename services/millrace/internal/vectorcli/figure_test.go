package vectorcli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/vectorfile"
	"github.com/millrace/millrace/services/millrace/internal/tty/ttytest"
)

func picture(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(raw)
}

func TestIterationsHaveOneNumber(t *testing.T) {
	// The line of train, the table of inspect and both pictures count updates: the energies are one
	// more.
	rows, dir := base(t, 200, 6), t.TempDir()
	cb := filepath.Join(dir, "cb.safetensors")
	r := serveVectors(t, &vectorServer{})
	require.Equal(t, 0, r.run(t, "vectors", "train", rows, "-k", "7", "--seed", "1", "-o", cb, "--plot", dir+"/train.svg"), r.err.String())
	found := regexp.MustCompile(`, (\d+) iterations \(`).FindStringSubmatch(r.out.String())
	require.NotNil(t, found, r.out.String())
	n := found[1]
	r.out = ttytest.Buffer{}
	require.Equal(t, 0, r.run(t, "vectors", "inspect", cb, "--plot", dir+"/inspect.svg"), r.err.String())
	require.Regexp(t, `(?m)^training iterations +`+n+`$`, r.out.String())
	require.Regexp(t, `(?m)^energy +`+n+` iterations, from `, r.out.String())
	for _, name := range []string{"train", "inspect"} {
		require.Contains(t, picture(t, dir+"/"+name+".svg"), ">"+n+" iterations, from ", name)
	}
	require.Contains(t, picture(t, dir+"/inspect.svg"), ">Variance of each codeword, most first<")
}

func TestOnlyPlanesHaveAScatter(t *testing.T) {
	dir := t.TempDir()
	draw := func(args ...string) string {
		r := &rig{target: "127.0.0.1:1"} // no server is called
		require.Equal(t, 0, r.run(t, append([]string{"vectors", "inspect", "--plot", dir + "/p.svg"}, args...)...), r.err.String())
		return picture(t, dir+"/p.svg")
	}
	plane := base(t, 2000, 2)
	flat := trainedCodebook(t, plane, "-k", "9")
	require.Contains(t, draw(flat), "Scatter: 9 codewords.")
	require.Contains(t, draw(flat, "--rows", plane), "Scatter: 1200 of 2000 rows (small), 9 codewords (large).")
	require.Contains(t, draw(trainedCodebook(t, plane, "-k", "3", "--subspaces", "2")), "Scatter: 9 codewords.", "where those of the subspaces cross")
	require.NotContains(t, draw(trainedCodebook(t, base(t, 50, 4), "-k", "9")), "Scatter")
	crossings := trainedCodebook(t, plane, "-k", "21", "--subspaces", "2") // more than are drawn: 441
	require.NotContains(t, draw(crossings), "Scatter")
	require.Contains(t, draw(crossings, "--rows", plane), "Scatter: 1200 of 2000 rows.")

	r := serveVectors(t, &vectorServer{})
	require.Equal(t, 0, r.run(t, "vectors", "train", plane, "-k", "9", "-o", dir+"/cb.safetensors", "--plot", dir+"/t.svg"), r.err.String())
	require.Contains(t, picture(t, dir+"/t.svg"), "Scatter: 1200 of 2000 rows (small), 9 codewords (large).")
}

func TestScattersHaveRowsOfEveryType(t *testing.T) {
	cb, dir := trainedCodebook(t, base(t, 50, 2), "-k", "9"), t.TempDir()
	rows := npy(t, "rows.npy", vectorfile.I8, []byte{0x80, 0x7f, 0, 0}, 2, 2) // (-128, 127) and (0, 0)
	r := &rig{target: "127.0.0.1:1"}
	require.Equal(t, 0, r.run(t, "vectors", "inspect", cb, "--plot", dir+"/p.svg", "--rows", rows), r.err.String())
	_, d, found := strings.Cut(picture(t, dir+"/p.svg"), `<path class="row" fill="none" stroke-width="2.5" stroke-linecap="round" d="M`)
	require.True(t, found)
	var first, second [2]float64
	for i, dot := range strings.SplitN(d, "M", 3)[:2] {
		x, y, _ := strings.Cut(strings.SplitN(dot, "h0", 2)[0], " ")
		for j, text := range []string{x, y} {
			v, err := strconv.ParseFloat(text, 64)
			require.NoError(t, err)
			[]*[2]float64{&first, &second}[i][j] = v
		}
	}
	require.Less(t, first[0], second[0]-50, "to the left")
	require.Less(t, first[1], second[1]-50, "and above")
}

func TestRowsWithAPeriodAreAllSampled(t *testing.T) {
	// Of 2400 rows 1200 are drawn. Every other row is at 0: a sample of every second row would show
	// one of two places.
	cb, dir := trainedCodebook(t, base(t, 50, 2), "-k", "9"), t.TempDir()
	raw := make([]byte, 2400*2)
	for i := range 1200 {
		raw[4*i], raw[4*i+1] = 100, 100
	}
	r := &rig{target: "127.0.0.1:1"}
	require.Equal(t, 0, r.run(t, "vectors", "inspect", cb, "--plot", dir+"/p.svg", "--rows", npy(t, "rows.npy", vectorfile.I8, raw, 2400, 2)), r.err.String())
	_, d, _ := strings.Cut(picture(t, dir+"/p.svg"), `<path class="row"`)
	d, _, _ = strings.Cut(d, "/>")
	places := map[string]int{}
	for _, dot := range regexp.MustCompile(`M(\S+ \S+)h0`).FindAllStringSubmatch(d, -1) {
		places[dot[1]]++
	}
	require.Len(t, places, 2)
	for at, n := range places {
		require.InDelta(t, 600, n, 100, at)
	}
}

func TestProductPicturesHaveSubspaces(t *testing.T) {
	cb, dir := trainedCodebook(t, base(t, 100, 4), "-k", "3", "--subspaces", "2"), t.TempDir()
	r := &rig{target: "127.0.0.1:1"}
	require.Equal(t, 0, r.run(t, "vectors", "inspect", cb, "--plot", dir+"/p.svg", "--json"), r.err.String())
	svg := picture(t, dir+"/p.svg")
	require.Contains(t, svg, "Loads: 2 subspaces of 3 codewords, ")
	require.Contains(t, svg, ">subspace 1<")
	// The energies of the subspaces add up to that of the last round.
	mean := regexp.MustCompile(`Subspaces: 2 subspaces, .* mean (\S+)\. Loads`).FindStringSubmatch(svg)
	last := regexp.MustCompile(`"energies":\[.*?([^,]+)\]`).FindStringSubmatch(r.out.String())
	require.NotNil(t, mean)
	require.NotNil(t, last)
	m, err := strconv.ParseFloat(mean[1], 64)
	require.NoError(t, err)
	e, err := strconv.ParseFloat(last[1], 64)
	require.NoError(t, err)
	require.InEpsilon(t, e, 2*m, 1e-3)
}

func TestInspectRefusesRowsThatNoPlotHas(t *testing.T) {
	plane, solid := base(t, 50, 2), base(t, 50, 4)
	flat, out := trainedCodebook(t, plane, "-k", "9"), filepath.Join(t.TempDir(), "p.svg")
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no plot":        {[]string{flat, "--rows", plane}, "--rows needs --plot FILE"},
		"other rows":     {[]string{flat, "--rows", solid, "--plot", out}, "has dimension 4, codebook"},
		"no file":        {[]string{flat, "--rows", plane + "x", "--plot", out}, "no such file"},
		"more dimension": {[]string{trainedCodebook(t, solid, "-k", "9"), "--rows", solid, "--plot", out}, "only rows of dimension 2 can be drawn"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &rig{target: "127.0.0.1:1"}
			require.Equal(t, 2, r.run(t, append([]string{"vectors", "inspect"}, tc.args...)...))
			require.Contains(t, r.err.String(), tc.want)
			require.NoFileExists(t, out)
		})
	}
}
