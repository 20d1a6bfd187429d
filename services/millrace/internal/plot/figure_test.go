package plot_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
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

	"github.com/millrace/millrace/services/millrace/internal/plot"
)

var update = flag.Bool("update", false, "rewrite the pictures of testdata")

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
				require.LessOrEqual(t, v, 940.0, "%s of %s", a.Name.Local, element.Name.Local)
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
		"small":           "Energy: 31 iterations, from 0.0613 to 0.01291. Loads: 32 codewords, ",
		"nothing":         "Energy: none recorded. Loads: none recorded.",
		"one of each":     "Energy: 1 iteration, from 0.25 to 0.25. Loads: 1 codeword, 0 empty, largest 7, mean 7.",
		"two of each":     "Loads: 2 codewords, 1 empty, largest 3, mean 1.5.",
		"gaps":            "Energy: 9 iterations, from 3 to 1, 5 not finite.",
		"nothing finite":  "Energy: none of 4 is finite.",
		"large":           "codewords; a bar is the mean of 365<",
		"as many as bars": "180 codewords, ",
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
	// The panel is from 84 to 294.
	require.Regexp(t, ` 84(L|h)`, path, "the highest point")
	require.Regexp(t, ` 294(L|h)`, path, "the lowest point")
}

func TestPicturesStayTheSame(t *testing.T) {
	for _, name := range []string{"small", "large", "gaps", "nothing"} {
		path := filepath.Join("testdata", name+".svg")
		got := figures()[name].SVG()
		if *update {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, got, 0o644))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err, "go test ./services/millrace/internal/plot -run StayTheSame -update writes it")
		require.Equal(t, string(want), string(got), fmt.Sprint(name, ": look at it before you accept it"))
	}
}
