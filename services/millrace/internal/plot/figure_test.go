package plot_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/repotest"
	"github.com/millrace/millrace/services/millrace/internal/plot"
)

// falling is energies as a training has them.
func falling(n int) []float64 {
	energies := make([]float64, n)
	for i := range energies {
		energies[i] = 0.0113 + 0.05/float64(1+i)
	}
	return energies
}

// uneven is the loads of k codewords.
func uneven(k int) []int64 {
	random := rand.New(rand.NewPCG(1, uint64(k)))
	loads := make([]int64, k)
	for i := range loads {
		loads[i] = random.Int64N(200) * random.Int64N(3)
	}
	return loads
}

func constant[T any](n int, v T) []T {
	list := make([]T, n)
	for i := range list {
		list[i] = v
	}
	return list
}

// circle is n points near a circle.
func circle(n int) []plot.Point {
	random := rand.New(rand.NewPCG(5, uint64(n)))
	points := make([]plot.Point, n)
	for i := range points {
		angle, radius := random.Float64()*2*math.Pi, 3+random.NormFloat64()/5
		points[i] = plot.Point{radius * math.Cos(angle), radius * math.Sin(angle)}
	}
	return points
}

func figures() map[string]plot.Figure {
	nan, inf := math.NaN(), math.Inf(1)
	return map[string]plot.Figure{
		"small":                  {Title: "circles: 256 codewords of dimension 32", Energies: falling(31), Loads: uneven(32)},
		"large":                  {Title: "large", Energies: falling(5000), Loads: uneven(65_536)},
		"nothing":                {},
		"one of each":            {Energies: []float64{0.25}, Loads: []int64{7}},
		"two of each":            {Energies: []float64{2, 1}, Loads: []int64{0, 3}},
		"as many as bars":        {Loads: uneven(180)},
		"one more than bars":     {Loads: uneven(181)},
		"a million":              {Energies: falling(1_000_000), Loads: uneven(1_000_000)},
		"equal":                  {Energies: constant(9, 0.5), Loads: constant(9, int64(4))},
		"zero":                   {Energies: constant(9, 0.0), Loads: constant(9, int64(0))},
		"gaps":                   {Energies: []float64{nan, 3, nan, 2, 2.5, inf, -inf, 1, nan}, Loads: uneven(3)},
		"nothing finite":         {Energies: []float64{nan, inf, -inf, math.MaxFloat64}, Loads: uneven(3)},
		"inner products":         {Energies: []float64{-0.25, -0.5, -0.625}, Loads: uneven(3)},
		"the largest numbers":    {Energies: []float64{1e300, -1e300, 1e300}, Loads: []int64{math.MaxInt64, math.MaxInt64, 0}},
		"the smallest numbers":   {Energies: []float64{5e-324, 0, 1e-310}, Loads: []int64{1}},
		"nearly equal":           {Energies: []float64{1e9, 1e9 + 1e-6, 1e9 + 1e-7}},
		"close together":         {Energies: []float64{1e9 + 0.01, 1e9, 1e9 + 0.002}},
		"loads that cannot be":   {Loads: []int64{-5, math.MinInt64, 2}},
		"log":                    {Energies: []float64{900, 40, 22, 18, 16, 15, 14.4, 14.1, 14, 13.95, 13.94}, Loads: uneven(40), Variances: falling(40)},
		"many decades":           {Energies: []float64{1e290, 1, 1e-290}},
		"a first drop":           {Energies: []float64{120.2, 76, 69.5, 66, 65, 64.2, 63.6, 63.1, 62.9, 62.8, 62.75, 62.7}, Loads: uneven(64)},
		"product":                {Title: "pq", Energies: falling(12), Loads: uneven(10 * 256), Subspaces: 10, SubspaceEnergies: falling(10)},
		"a wide product":         {Energies: falling(5000), Loads: uneven(1000 * 512), Subspaces: 1000, SubspaceEnergies: falling(1000)},
		"an uneven product":      {Loads: uneven(7), Subspaces: 2},
		"an empty product":       {Loads: make([]int64, 8), Subspaces: 2, SubspaceEnergies: []float64{nan, inf}},
		"plane":                  {Title: "plane", Energies: falling(12), Loads: uneven(24), Variances: falling(24), Scatter: &plot.Scatter{Rows: circle(900), AllRows: 50_000, Codewords: circle(24)}},
		"a full plane":           {Energies: falling(5000), Loads: uneven(5000), Variances: falling(5000), Scatter: &plot.Scatter{Rows: circle(9000), Codewords: circle(5000)}},
		"codewords alone":        {Loads: uneven(9), Scatter: &plot.Scatter{Codewords: circle(9)}},
		"rows alone":             {Scatter: &plot.Scatter{Rows: circle(20)}},
		"one point":              {Scatter: &plot.Scatter{Codewords: []plot.Point{{2, 2}, {nan, 1}, {1, inf}}}},
		"no point":               {Scatter: &plot.Scatter{}, Variances: []float64{nan}},
		"negative variances":     {Loads: uneven(4), Variances: []float64{-0.5, -2, 0.25, inf}},
		"markup":                 {Title: `</text><script>alert("x")</script>&amp; ]]> 'y'`},
		"what XML cannot have":   {Title: "a\x00b\x1b[2J\xff\ufffe\n\tc"},
		"a long title":           {Title: strings.Repeat("é<", 200_000)},
		"a title that just fits": {Title: strings.Repeat("x", 90)},
	}
}

var (
	number  = regexp.MustCompile(`-?\d+(?:\.\d+)?`)
	outside = regexp.MustCompile(`(?i)href|url\(|@import|<script|<image|<foreignObject|<!DOCTYPE|<!ENTITY|\son\w+=|src=`)
)

func TestPicturesAreXMLThatNeedsNothingElse(t *testing.T) {
	for name, f := range figures() {
		t.Run(name, func(t *testing.T) {
			svg := f.SVG()
			require.Less(t, len(svg), 64<<10)
			require.NotRegexp(t, outside, string(svg))
			require.Equal(t, 1, bytes.Count(svg, []byte("http")), "the name space alone")
			require.NotContains(t, string(svg), "NaN")
			require.NotContains(t, string(svg), "Inf")

			depth, elements := 0, 0
			for dec := xml.NewDecoder(bytes.NewReader(svg)); ; {
				token, err := dec.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				switch element := token.(type) {
				case xml.StartElement:
					require.Equal(t, "http://www.w3.org/2000/svg", element.Name.Space)
					require.Contains(t, []string{"svg", "title", "desc", "style", "rect", "text", "line", "path"}, element.Name.Local)
					require.Equal(t, elements == 0, depth == 0, "one root")
					depth, elements = depth+1, elements+1
					inside(t, element)
				case xml.EndElement:
					depth--
				}
			}
			require.Zero(t, depth)
		})
	}
}

// inside asks that an element lies in the picture.
func inside(t *testing.T, element xml.StartElement) {
	t.Helper()
	for _, a := range element.Attr {
		switch a.Name.Local {
		case "x", "x1", "x2", "y", "y1", "y2", "d":
			for _, text := range number.FindAllString(a.Value, -1) {
				v, err := strconv.ParseFloat(text, 64)
				require.NoError(t, err)
				require.GreaterOrEqual(t, v, 0.0, "%s of %s", a.Name.Local, element.Name.Local)
				require.LessOrEqual(t, v, 1100.0, "%s of %s", a.Name.Local, element.Name.Local)
			}
		}
	}
}

func TestTitlesAreTextAndNothingElse(t *testing.T) {
	read := func(f plot.Figure) string {
		var document struct {
			Title string `xml:"title"`
		}
		require.NoError(t, xml.Unmarshal(f.SVG(), &document))
		return document.Title
	}
	f := figures()
	require.Equal(t, f["markup"].Title, read(f["markup"]))
	require.Equal(t, f["a title that just fits"].Title, read(f["a title that just fits"]))
	require.Len(t, []rune(read(f["a long title"])), 90)
	require.Equal(t, "a�b�[2J��\n\tc", read(f["what XML cannot have"]))
}

func TestPicturesDependOnTheirNumbersAlone(t *testing.T) {
	f := figures()["large"]
	want := f.SVG()
	random := rand.New(rand.NewPCG(3, 4))
	for range 3 {
		random.Shuffle(len(f.Loads), func(i, j int) { f.Loads[i], f.Loads[j] = f.Loads[j], f.Loads[i] })
		before := append([]int64(nil), f.Loads...)
		require.Equal(t, want, f.SVG())
		require.Equal(t, before, f.Loads, "the caller's loads stay as they are")
	}
}

func TestWordsSayWhatThePictureShows(t *testing.T) {
	for name, want := range map[string]string{
		"small":           "Energy: 30 iterations, from 0.0613 to 0.01291. Loads: 32 codewords, ",
		"nothing":         "Energy: none recorded. Loads: none recorded.",
		"one of each":     "Energy: 0 iterations, from 0.25 to 0.25. Loads: 1 codeword, 0 empty, largest 7, mean 7.",
		"two of each":     "Energy: 1 iteration, from 2 to 1. Loads: 2 codewords, 1 empty, largest 3, mean 1.5.",
		"gaps":            "Energy: 8 iterations, from 3 to 1, 5 not finite.",
		"nothing finite":  "Energy: none of 4 values is finite.",
		"large":           "codewords; a bar is the mean of 365<",
		"as many as bars": "180 codewords, ",
		"product":         "Subspaces: 10 subspaces, least 0.0163, largest 0.0613, mean 0.02594. Loads: 10 subspaces of 256 codewords, ",
		"a wide product":  "; subspaces 0 to 63 are drawn<",
		"plane":           "Variances: 24 codewords with rows, least 0.01338, largest 0.0613, mean 0.01917. Scatter: 900 of 50000 rows (small), 24 codewords (large).",
		"a full plane":    "Scatter: 1200 of 9000 rows (small), 400 of 5000 codewords (large).",
		"rows alone":      "Scatter: 20 rows.",
		"codewords alone": "Scatter: 9 codewords.",
		"log":             ">Energy over iterations, log scale<",
	} {
		require.Contains(t, string(figures()[name].SVG()), want, name)
	}
	require.NotContains(t, string(figures()["as many as bars"].SVG()), "a bar is the mean")
}

func TestAMillionIterationsKeepTheirPeaks(t *testing.T) {
	energies := constant(1_000_000, 1.0)
	energies[500_001] = 5
	energies[700_003] = -3
	svg := string(plot.Figure{Energies: energies}.SVG())
	_, path, found := strings.Cut(svg, `<path class="line"`)
	require.True(t, found)
	path, _, found = strings.Cut(path, "/>")
	require.True(t, found)
	// The panel is from 84 to 294, the axis from -4 to 6.
	require.Regexp(t, ` 105(L|h)`, path, "the highest point")
	require.Regexp(t, ` 273(L|h)`, path, "the lowest point")
}

func TestPicturesStayTheSame(t *testing.T) {
	for _, name := range []string{"small", "large", "gaps", "nothing", "log", "a first drop", "product", "plane"} {
		path := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".svg")
		got := figures()[name].SVG()
		if *repotest.Update {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, got, 0o644))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err, "go test ./services/millrace/internal/plot -run StayTheSame -update writes it")
		require.Equal(t, string(want), string(got), fmt.Sprint(name, ": look at it before you accept it"))
	}
}

func TestAxesEndAtLines(t *testing.T) {
	// The first and the last grid line of each panel are at its ends, 294 and 84, and no curve lies beyond them.
	for name, f := range figures() {
		svg := string(f.SVG())
		if !strings.Contains(svg, `<path class="line"`) {
			continue
		}
		require.Contains(t, svg, `<line class="grid" x1="78" y1="294" x2="438" y2="294"/>`, name)
		require.Contains(t, svg, `<line class="grid" x1="78" y1="84" x2="438" y2="84"/>`, name)
	}
}

func TestOnlyASteepFirstDropHasATail(t *testing.T) {
	for name, want := range map[string]string{
		"a first drop": ">from iteration 1 on<", "log": ">from iteration 1 on, linear scale<",
		"small": "", "gaps": "", "two of each": "", "equal": "",
	} {
		svg := string(figures()[name].SVG())
		if want == "" {
			require.NotContains(t, svg, `<rect class="inset"`, name)
		} else {
			require.Contains(t, svg, want, name)
		}
	}
	rising := plot.Figure{Energies: []float64{10, 1, 2, 4, 8, 9}}
	require.NotContains(t, string(rising.SVG()), `<rect class="inset"`, "the box would lie on the curve")
}

func TestEverySubspaceHasAHistogram(t *testing.T) {
	f := plot.Figure{Loads: []int64{9, 0, 0, 3, 3, 3}, Subspaces: 2}
	svg := string(f.SVG())
	require.Contains(t, svg, ">subspace 0<")
	require.Contains(t, svg, ">subspace 1<")
	require.NotContains(t, svg, ">subspace 2<")
	// Both have the scale of the first: 9 rows reach 0.9 of the height of 52 that ends at 10, 3 rows 0.3 of it.
	_, d, _ := strings.Cut(svg, `<path class="bar" d="`)
	d, _, _ = strings.Cut(d, `"`)
	first, second, found := strings.Cut(d, "zM")
	require.True(t, found)
	heights := func(d string) (values []float64) {
		for _, v := range regexp.MustCompile(`V([0-9.]+)`).FindAllStringSubmatch(d, -1) {
			y, err := strconv.ParseFloat(v[1], 64)
			require.NoError(t, err)
			values = append(values, y)
		}
		bottom := values[len(values)-1]
		for i := range values {
			values[i] = bottom - values[i]
		}
		return values[:len(values)-1]
	}
	require.InDeltaSlice(t, []float64{46.8, 0, 0}, heights(first), 0.11)
	require.InDeltaSlice(t, []float64{15.6, 15.6, 15.6}, heights(second), 0.11)
}

func TestEveryColourHasADarkOne(t *testing.T) {
	svg := string(plot.Figure{}.SVG())
	_, style, _ := strings.Cut(svg, "<style>")
	light, dark, found := strings.Cut(style, "@media (prefers-color-scheme: dark)")
	require.True(t, found)
	for _, rule := range regexp.MustCompile(`(?m)^(\S+) \{.*#`).FindAllStringSubmatch(light, -1) {
		require.Contains(t, dark, "\n"+rule[1]+" { ", "a colour of the light page alone")
	}
	for _, class := range regexp.MustCompile(` class="(\w+)"`).FindAllStringSubmatch(string(figures()["plane"].SVG())+string(figures()["log"].SVG()), -1) {
		require.Contains(t, light, "\n."+class[1]+" {")
	}
}
