package vectorcli

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/internal/codebookfile"
	"github.com/millrace/millrace/internal/safetensors"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/plot"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/session"
)

// trained is the result of a training.
type trained struct {
	book      codebookfile.Codebook
	codewords []byte
	energies  []float64 // nil if the energy of a round is missing
	loads     []int64   // nil if the server did not send those of all codewords
	variances []float64 // likewise
	worker    string
	accepted  *pb.TrainingAccepted
	finished  *pb.TrainingFinished
	rows      string // their digest
	unsaved   error  // training.unsaved
}

// end checks the result against the digest and sizes that the worker announced.
func (t *training) end(f *pb.TrainingFinished) (*trained, error) {
	cfg := t.config
	c := codebookfile.Codebook{
		Kind: kindNames[cfg.GetKind()], Metric: codebookfile.L2, Dimension: int(cfg.GetDimension()), Codewords: int(cfg.GetCodewords()),
		Subspaces: max(1, int(cfg.GetSubspaces())), CodewordType: safetensors.F16, ElementType: rowTypes[cfg.GetElementType()],
		Algorithm: codebookfile.Lloyd, Seed: cfg.GetSeed(), Numerics: f.GetNumerics(), Digest: blake3.Sum256(t.codewords),
	}
	if cfg.GetMetric() != 0 {
		c.Metric = metricNames[cfg.GetMetric()]
	}
	if cfg.GetAlgorithm() != 0 {
		c.Algorithm = algorithmNames[cfg.GetAlgorithm()]
	}
	if cfg.GetCodewordType() != 0 {
		c.CodewordType = tensorTypes[cfg.GetCodewordType()]
	}
	switch {
	case t.accepted == nil:
		return nil, fmt.Errorf("%w: it ended a training that it had not accepted", errReply)
	case len(t.codewords) != t.size():
		return nil, fmt.Errorf("%w: %d bytes of a codebook of %d came", errReply, len(t.codewords), t.size())
	case publicDigest(c) != f.GetCodebookDigest():
		return nil, fmt.Errorf("%w: the codebook that came has the digest %s, announced was %s: train it again", errReply, publicDigest(c), f.GetCodebookDigest())
	}
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", errReply, err)
	}
	out := &trained{book: c, codewords: t.codewords, energies: t.energies, worker: t.worker, accepted: t.accepted, finished: f, rows: t.rowsDigest,
		unsaved: t.unsaved}
	if uint64(len(t.loads)) == codewordsOf(cfg) {
		out.loads, out.variances = t.loads, t.variances
	}
	if t.missed || uint64(len(t.energies)) != f.GetIterations()+1 {
		out.energies = nil
	}
	return out, nil
}

// write writes the codebook's file, the same whatever worker trained it.
func (d *trained) write(w io.Writer, t *training) error {
	texts := t.texts(d.rows)
	for _, field := range []string{"kind", "metric", "dimension", "codewords", "subspaces", "codeword_type", "element_type", "algorithm", "seed"} {
		delete(texts, field) // the file has them elsewhere
	}
	texts["sampled_rows"] = fmt.Sprint(d.accepted.GetSampledRows())
	texts["iterations"] = fmt.Sprint(d.finished.GetIterations())
	texts["reason"] = reasonText(d.finished.GetReason())
	texts["energy"] = strconv.FormatFloat(d.finished.GetEnergy(), 'g', -1, 64)
	texts["empty"] = fmt.Sprint(d.finished.GetEmpty())
	return codebookfile.Write(w, d.book, bytes.NewReader(d.codewords), codebookfile.History{
		Energies: d.energies, Loads: d.loads, Variances: d.variances, Training: texts,
	})
}

// figure returns the plot of a training on the rows of the file path.
func (d *trained) figure(path string, t *training) (plot.Figure, error) {
	f := trainingStatistics{d.energies, d.loads, d.variances}.figure(path, d.book)
	var err error
	f.Scatter, err = scatter(d.book, bytes.NewReader(d.codewords), t.rows, d.book.ElementType)
	return f, err
}

func reasonText(r pb.TrainingReason) string {
	return render.Readable(r.String(), "TRAINING_REASON_")
}

// line describes the end of a training for people.
func (d *trained) line(file string, cfg *pb.TrainingConfig, took time.Duration) string {
	f := d.finished
	where := []string{}
	if file != "" {
		where = append(where, file)
	}
	if cfg.SaveAs != nil && d.unsaved == nil {
		where = append(where, fmt.Sprintf("%s on %s", cfg.GetSaveAs(), d.worker))
	}
	if len(where) == 0 {
		where = append(where, "kept nowhere")
	}
	text := fmt.Sprintf("%s: %s, %s, energy %.9g, %s (%s), %.3g %% of the rows' bytes, seed %d, digest %s, %s",
		strings.Join(where, " and "), shapeText(shapeOf(d.book)), render.Bytes(uint64(len(d.codewords))), f.GetEnergy(), iterations(int(f.GetIterations())),
		reasonText(f.GetReason()), 100*f.GetCompressionRatio(), d.accepted.GetSeed(), render.ShortDigest(f.GetCodebookDigest()), render.Duration(took))
	if f.GetEmpty() > 0 {
		text += fmt.Sprintf(", %d codewords without rows", f.GetEmpty())
	}
	if f.GetTimings().GetDevice() != nil {
		text += fmt.Sprintf(", the device worked %s", render.Duration(f.GetTimings().GetDevice().AsDuration()))
	}
	return render.Line(text + ", worker " + d.worker)
}

// printEvent writes an event as JSON, without the bytes of codebooks, checkpoints and statistics.
// Of a checkpoint it writes the last piece only, of the other two none.
func printEvent(w io.Writer, event *pb.TrainCodebookResponse) error {
	switch e := event.GetEvent().(type) {
	case *pb.TrainCodebookResponse_Codebook, *pb.TrainCodebookResponse_Statistics:
		return nil
	case *pb.TrainCodebookResponse_Checkpoint:
		if e.Checkpoint.GetOffset()+uint64(len(e.Checkpoint.GetChunk())) < e.Checkpoint.GetTotal() {
			return nil
		}
		event = proto.CloneOf(event)
		event.GetCheckpoint().Chunk, event.GetCheckpoint().Offset = nil, 0
	}
	return session.PrintJSON(w, event)
}
