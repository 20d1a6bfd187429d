package cli

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/codebookfile"
	"github.com/millrace/millrace/internal/vectorfile"
	"github.com/millrace/millrace/services/millrace/internal/plot"
	"github.com/millrace/millrace/services/millrace/internal/render"
)

// inspected is what a codebook's file tells.
type inspected struct {
	Kind         string            `json:"kind"`
	Metric       string            `json:"metric"`
	Dimension    int               `json:"dimension"`
	Codewords    int               `json:"codewords"`
	Subspaces    int               `json:"subspaces"`
	CodewordType string            `json:"codeword_type"`
	Bytes        int64             `json:"bytes"`
	Digest       string            `json:"codebook_digest"`
	Algorithm    string            `json:"algorithm,omitempty"`
	ElementType  string            `json:"element_type,omitempty"`
	Seed         string            `json:"seed,omitempty"`
	Numerics     string            `json:"numerics,omitempty"`
	Training     map[string]string `json:"training,omitempty"`
	Energies     []float64         `json:"energies,omitempty"`
	Loads        *loadSummary      `json:"loads,omitempty"`
	Variances    *varianceSummary  `json:"variances,omitempty"`
}

// loadSummary is how rows spread over codewords.
type loadSummary struct {
	Rows      int64   `json:"rows"`
	Least     int64   `json:"least"`
	Median    int64   `json:"median"`
	Most      int64   `json:"most"`
	Empty     int     `json:"empty"`
	Imbalance float64 `json:"imbalance"` // codewords * sum of squared loads / rows^2, the mean over subspaces; 1 is even
}

// varianceSummary is how the variances of the codewords that have rows spread: of each the mean distance of its rows, with L2 squared.
type varianceSummary struct {
	Least  float64 `json:"least"`
	Median float64 `json:"median"`
	Most   float64 `json:"most"`
	Mean   float64 `json:"mean"` // each codeword counts once
}

// vectorsInspect shows a codebook's file.
func (a *app) vectorsInspect() *cobra.Command {
	var codes, drawing string
	asJSON := false
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Show what a codebook's file says, its digest computed anew",
		Long: "Shows shape, digest and training of a codebook's file, how many rows each codeword had in it and how far these lie from\n" +
			"it, which is its variance, and with --codes how many rows each codeword has of those that were encoded. The digest is\n" +
			"computed from the codewords; a file whose codewords are not those it was written with is refused. No server is asked.\n\n" +
			"Energy is the mean distance of the rows from their codewords: of the metric l2 the mean squared error of a row. Imbalance\n" +
			"says how evenly rows are spread over codewords: codewords x sum of squared rows of each / square of all rows; 1 is even.",
		Example: "  millrace vectors inspect cb.safetensors --codes codes.npy --plot cb.svg",
		Args:    one("FILE, a codebook's"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.runInspect(args[0], codes, drawing, asJSON)
		},
	}
	cmd.Flags().StringVar(&codes, "codes", "", "codes that encode wrote with this codebook: count the rows of each codeword")
	cmd.Flags().StringVar(&drawing, "plot", "", "draw energy over iterations, and rows per codeword, into this file, .svg")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func (a *app) runInspect(path, codes, drawing string, asJSON bool) error {
	file, err := openCodebook(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	energies, err := file.Energies()
	if err != nil {
		return usagef("%s: %w", path, err)
	}
	loads, err := file.Loads()
	if err != nil {
		return usagef("%s: %w", path, err)
	}
	variances, err := file.Variances()
	if err != nil {
		return usagef("%s: %w", path, err)
	}
	spread := spreadOf(variances, loads)
	if codes != "" {
		if loads, err = count(file.Codebook, path, codes); err != nil {
			return err
		}
	}
	if drawing != "" {
		figure := plot.Figure{Title: fmt.Sprintf("%s: %s", filepath.Base(path), shapeText(shapeOf(file.Codebook))), Energies: energies, Loads: loads}
		err := writeWhole(drawing, func(w *os.File) error {
			_, err := w.Write(figure.SVG())
			return err
		})
		if err != nil {
			return err
		}
	}
	out := inspect(file, energies, loads)
	out.Variances = spread
	if asJSON {
		return json.NewEncoder(a.Out).Encode(out)
	}
	fmt.Fprint(a.Out, out.table())
	return nil
}

func inspect(file *codebookfile.File, energies []float64, loads []int64) inspected {
	c := file.Codebook
	out := inspected{
		Kind: c.Kind, Metric: c.Metric, Dimension: c.Dimension, Codewords: c.Codewords, Subspaces: c.Subspaces, CodewordType: c.CodewordType.String(),
		Bytes: c.Bytes(), Digest: publicDigest(c), Training: file.Training(), Energies: energies,
	}
	if c.Numerics != "" {
		out.Algorithm, out.ElementType, out.Numerics = c.Algorithm, c.ElementType.String(), c.Numerics
		out.Seed = strconv.FormatUint(c.Seed, 10)
	}
	if len(loads) > 0 {
		out.Loads = summary(loads, c.Subspaces)
	}
	return out
}

// count gives the rows of each codeword, (subspaces, codewords).
func count(c codebookfile.Codebook, path, codes string) ([]int64, error) {
	file, err := vectorfile.OpenCodes(codes)
	if err != nil {
		return nil, usagef("%w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	book := &codebook{name: path, shape: shapeOf(c)}
	if err := fitting(file.Matrix, codes, book); err != nil {
		return nil, err
	}
	loads, size := make([]int64, c.Subspaces*c.Codewords), codeBytes(book.shape)
	each := int64(max(1, maxPayload/max(file.RowBytes(), size*c.Subspaces)))
	for first := int64(0); first < file.Rows(); first += each {
		wire, err := wireCodes(file.Matrix, book.shape, first, min(each, file.Rows()-first))
		if err != nil {
			return nil, err
		}
		for i := range len(wire) / size {
			code := int(wire[i*size])
			if size == 2 {
				code = int(binary.LittleEndian.Uint16(wire[2*i:]))
			}
			if code >= c.Codewords {
				return nil, usagef("%s: row %d has code %d, and there are %d codewords: these codes are of another codebook", codes,
					first+int64(i/c.Subspaces), code, c.Codewords)
			}
			loads[i%c.Subspaces*c.Codewords+code]++
		}
	}
	return loads, nil
}

// summary is how loads spread; there is one at least.
func summary(loads []int64, subspaces int) *loadSummary {
	s, sorted := &loadSummary{}, slices.Sorted(slices.Values(loads))
	s.Least, s.Median, s.Most = sorted[0], sorted[len(sorted)/2], sorted[len(sorted)-1]
	squares := 0.0
	for _, n := range loads {
		s.Rows += n
		squares += float64(n) * float64(n)
		if n == 0 {
			s.Empty++
		}
	}
	s.Rows /= int64(subspaces)
	if s.Rows > 0 {
		s.Imbalance = float64(len(loads)/subspaces) * squares / float64(s.Rows) / float64(s.Rows) / float64(subspaces)
	}
	return s
}

// spreadOf sums up the variances of the codewords that have rows; nil if there is none. loads are those of the same training.
func spreadOf(variances []float64, loads []int64) *varianceSummary {
	var of []float64
	total := 0.0
	for c, v := range variances {
		if c >= len(loads) || loads[c] > 0 {
			of = append(of, v)
			total += v
		}
	}
	if len(of) == 0 {
		return nil
	}
	slices.Sort(of)
	return &varianceSummary{Least: of[0], Median: of[len(of)/2], Most: of[len(of)-1], Mean: total / float64(len(of))}
}

// table is a line for each thing known.
func (i inspected) table() string {
	var rows [][]string
	add := func(name, text string) {
		if text != "" {
			rows = append(rows, []string{name, text})
		}
	}
	add("kind", i.Kind)
	add("metric", i.Metric)
	add("dimension", fmt.Sprint(i.Dimension))
	add("codewords", fmt.Sprint(i.Codewords))
	add("subspaces", fmt.Sprint(i.Subspaces))
	add("codeword type", i.CodewordType)
	add("size", render.Bytes(uint64(max(0, i.Bytes))))
	add("digest", i.Digest)
	add("algorithm", i.Algorithm)
	add("element type", i.ElementType)
	add("seed", i.Seed)
	add("numerics", i.Numerics)
	for _, name := range slices.Sorted(maps.Keys(i.Training)) {
		add("training "+readable(name, ""), i.Training[name])
	}
	if n := len(i.Energies); n > 0 {
		add("energies", fmt.Sprintf("%d rounds, from %.6g to %.6g", n, i.Energies[0], i.Energies[n-1]))
	}
	if l := i.Loads; l != nil {
		add("rows", fmt.Sprint(l.Rows))
		add("rows per codeword", fmt.Sprintf("least %d, median %d, most %d", l.Least, l.Median, l.Most))
		add("without rows", fmt.Sprint(l.Empty))
		add("imbalance", fmt.Sprintf("%.4g", l.Imbalance))
	}
	if v := i.Variances; v != nil {
		add("variance", fmt.Sprintf("least %.6g, median %.6g, most %.6g, mean %.6g", v.Least, v.Median, v.Most, v.Mean))
	}
	return render.Table([]string{"FIELD", "VALUE"}, rows)
}
