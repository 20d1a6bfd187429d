package vectorcli

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/codebookfile"
	"github.com/millrace/millrace/internal/vectorfile"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/plot"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/session"
)

// facts has the content of a codebook's file.
type facts struct {
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

// loadSummary is the distribution of rows over codewords.
type loadSummary struct {
	Rows      int64   `json:"rows"`
	Least     int64   `json:"least"`
	Median    int64   `json:"median"`
	Most      int64   `json:"most"`
	Empty     int     `json:"empty"`
	Imbalance float64 `json:"imbalance"` // codewords * sum of squared loads / rows^2, the mean over subspaces; 1 is even
}

// varianceSummary is the distribution of the variances of the codewords that have rows. A variance
// is the mean distance of the codeword's rows, squared for L2.
type varianceSummary struct {
	Least  float64 `json:"least"`
	Median float64 `json:"median"`
	Most   float64 `json:"most"`
	Mean   float64 `json:"mean"` // each codeword counts once
}

// inspectFlags are the flags of inspect.
type inspectFlags struct {
	codes, plot, rows string
	json              bool
}

// inspect shows a codebook's file.
func (a *app) inspect() *cobra.Command {
	var f inspectFlags
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Show the contents of a codebook's file and recompute its digest",
		Long: "Shows shape, digest and training of a codebook's file, how many rows each codeword had in it and how far these lie from\n" +
			"it, which is its variance, and with --codes how many rows each codeword has of those that were encoded. The digest is\n" +
			"computed from the codewords; a file whose codewords are not those it was written with is refused. No server is needed.\n\n" +
			"Energy is the mean distance of the rows from their codewords: of the metric l2 the mean squared error of a row. Imbalance\n" +
			"says how evenly rows are spread over codewords: codewords x sum of squared rows of each / square of all rows; 1 is even.",
		Example: "  millrace vectors inspect cb.safetensors --codes codes.npy --plot cb.svg",
		Args:    session.One("FILE, a codebook's"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.runInspect(args[0], &f)
		},
	}
	cmd.Flags().StringVar(&f.codes, "codes", "", "codes that encode wrote with this codebook: count the rows of each codeword")
	cmd.Flags().StringVar(&f.plot, "plot", "", "draw energy over iterations, rows and variance of each codeword, and codewords of dimension 2, into this file, .svg")
	cmd.Flags().StringVar(&f.rows, "rows", "", "rows of dimension 2 to draw with the codewords; needs --plot")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object")
	return cmd
}

func (a *app) runInspect(path string, f *inspectFlags) error {
	if f.rows != "" && f.plot == "" {
		return failure.Usagef("--rows needs --plot FILE: the rows are only drawn")
	}
	file, err := openCodebook(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	var s trainingStatistics
	s.energies, err = file.Energies()
	if err != nil {
		return failure.Usagef("%s: %w", path, err)
	}
	s.loads, err = file.Loads()
	if err != nil {
		return failure.Usagef("%s: %w", path, err)
	}
	s.variances, err = file.Variances()
	if err != nil {
		return failure.Usagef("%s: %w", path, err)
	}
	loads := s.loads
	if f.codes != "" {
		if loads, err = count(file.Codebook, path, f.codes); err != nil {
			return err
		}
	}
	if f.plot != "" {
		figure := s.figure(path, file.Codebook)
		figure.Loads = loads
		if figure.Scatter, err = f.scatter(path, file); err != nil {
			return err
		}
		err := writeWhole(f.plot, func(w *os.File) error {
			_, err := w.Write(figure.SVG())
			return err
		})
		if err != nil {
			return err
		}
	}
	out := inspect(file, s.energies, loads)
	out.Variances = spreadOf(s.withRows())
	if f.json {
		return json.NewEncoder(a.Out).Encode(out)
	}
	fmt.Fprint(a.Out, out.table())
	return nil
}

// scatter returns the codewords of a file and the rows of --rows to draw.
func (f *inspectFlags) scatter(path string, file *codebookfile.File) (*plot.Scatter, error) {
	if f.rows == "" {
		return scatter(file.Codebook, file.Data(), nil, 0)
	}
	rows, err := vectorfile.OpenRows(f.rows)
	if err != nil {
		return nil, failure.Usagef("%w", err)
	}
	defer func() { _ = rows.Close() }() // it was only read
	switch {
	case file.Dimension != 2:
		return nil, failure.Usagef("--rows: %s has dimension %d, and only rows of dimension 2 can be drawn: leave the flag out", path, file.Dimension)
	case rows.Dimension() != 2:
		return nil, failure.Usagef("%s has dimension %d, codebook %s has 2: give rows like those that it was trained on", f.rows, rows.Dimension(), path)
	}
	return scatter(file.Codebook, file.Data(), rows, rows.ElementType())
}

func inspect(file *codebookfile.File, energies []float64, loads []int64) facts {
	c := file.Codebook
	out := facts{
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

// count returns the rows of each codeword, (subspaces, codewords).
func count(c codebookfile.Codebook, path, codes string) ([]int64, error) {
	file, err := vectorfile.OpenCodes(codes)
	if err != nil {
		return nil, failure.Usagef("%w", err)
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
				return nil, failure.Usagef("%s: row %d has code %d, and there are %d codewords: these codes are of another codebook", codes,
					first+int64(i/c.Subspaces), code, c.Codewords)
			}
			loads[i%c.Subspaces*c.Codewords+code]++
		}
	}
	return loads, nil
}

// summary summarises loads, of which there is at least one.
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

// spreadOf summarises variances; nil for an empty list.
func spreadOf(variances []float64) *varianceSummary {
	if len(variances) == 0 {
		return nil
	}
	total := 0.0
	for _, v := range variances {
		total += v
	}
	sorted := slices.Sorted(slices.Values(variances))
	return &varianceSummary{Least: sorted[0], Median: sorted[len(sorted)/2], Most: sorted[len(sorted)-1], Mean: total / float64(len(sorted))}
}

// iterations writes a count of updates. The energies are one more, because the first belongs to the
// codewords before the first update.
func iterations(n int) string {
	if n == 1 {
		return "1 iteration"
	}
	return fmt.Sprintf("%d iterations", n)
}

// table returns a line for each known fact.
func (i facts) table() string {
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
		add("training "+render.Readable(name, ""), i.Training[name])
	}
	if n := len(i.Energies); n > 0 {
		add("energy", fmt.Sprintf("%s, from %.6g to %.6g", iterations(n-1), i.Energies[0], i.Energies[n-1]))
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
