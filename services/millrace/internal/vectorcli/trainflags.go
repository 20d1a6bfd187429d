package vectorcli

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/protoflags"
)

// annealingPrefix distinguishes Annealing's fields from those of the config if both are texts.
const annealingPrefix = "annealing."

// limits are the fields that may change when a training is resumed.
var limits = []string{"max_iterations", "energy_tolerance", "min_changes", "stable_iterations"}

// unrecorded are the fields that do not decide the result of a training.
var unrecorded = []string{"checkpoint_interval", "resume_bytes", "save_as", "return_statistics"}

// complete turns the flags into a training.
func (t *training) complete(fs *pflag.FlagSet, f *trainFlags, path string) error {
	cfg := t.config
	switch {
	case f.out == "" && cfg.SaveAs == nil:
		return failure.Usagef("nowhere to put the codebook: give -o FILE, --save-as NAME, or both")
	case f.out != "" && !strings.HasSuffix(f.out, codebookEnding):
		return failure.Usagef("-o %s: a codebook's file ends in %s", f.out, codebookEnding)
	case f.resume != "" && f.from != "":
		return failure.Usagef("--resume and --from: a checkpoint has the codewords; leave --from out")
	case cfg.CheckpointInterval != nil && f.checkpoint == "":
		return failure.Usagef("--checkpoint-interval needs --checkpoint FILE: nothing would be kept")
	case f.checkpoint != "" && cfg.CheckpointInterval == nil:
		cfg.CheckpointInterval = proto.Uint32(defaultCheckpointInterval)
	}
	if f.checkpoint != "" {
		w, err := createWhole(f.checkpoint) // checks now that it can be written
		if err != nil {
			return err
		}
		w.discard()
	}
	switch {
	case f.resume != "":
		if err := t.resume(fs, f.resume, path); err != nil {
			return err
		}
	case f.from != "":
		if err := t.from(fs, f.from); err != nil {
			return err
		}
	case cfg.GetInit() == pb.CodebookInit_CODEBOOK_INIT_GIVEN:
		return failure.Usagef("--init given needs the codewords: --from FILE names them")
	}
	if cfg.GetKind() == 0 {
		cfg.Kind = pb.CodebookKind_CODEBOOK_KIND_FLAT
		if cfg.Subspaces != nil {
			cfg.Kind = pb.CodebookKind_CODEBOOK_KIND_PRODUCT
		}
	}
	if cfg.GetCodewords() == 0 {
		return failure.Usagef("no number of codewords: give it with -k")
	}
	if proto.Equal(cfg.GetAnnealing(), &pb.Annealing{}) {
		cfg.Annealing = nil
	}
	return nil
}

// resume makes the training resume from a checkpoint's file.
func (t *training) resume(fs *pflag.FlagSet, file, path string) error {
	c, err := readCheckpoint(file)
	if err != nil {
		return failure.Usagef("--resume %s: %w", file, err)
	}
	if err := t.adopt(fs, c.training, "the checkpoint "+file, path); err != nil {
		return err
	}
	t.config.ResumeBytes = proto.Uint64(uint64(len(c.state)))
	t.prologue, t.energies = bytes.NewReader(c.state), c.energies
	t.rowsDigest, t.givenDigest = c.training[rowsDigestText], c.training[givenDigestText]
	return nil
}

// from makes the training begin with the codewords of a codebook's file.
func (t *training) from(fs *pflag.FlagSet, file string) error {
	book, err := openCodebook(file)
	if err != nil {
		return err
	}
	t.closers = append(t.closers, book.Close)
	shape := shapeOf(book.Codebook)
	texts := map[string]string{"init": protoflags.Name(pb.CodebookInit_CODEBOOK_INIT_GIVEN)}
	for field, text := range protoflags.Texts(shape) {
		if field != "subspaces" || shape.GetKind() == pb.CodebookKind_CODEBOOK_KIND_PRODUCT {
			texts[field] = text
		}
	}
	t.prologue, t.givenDigest = book.Data(), publicDigest(book.Codebook)
	return t.adopt(fs, texts, "the codebook "+file, "ROWS")
}

// adopt copies fields from a file's texts, and refuses those that differ on the command line or in
// the rows.
func (t *training) adopt(fs *pflag.FlagSet, texts map[string]string, source, path string) error {
	have := recorded(t.config)
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		field, message := name, proto.Message(t.config)
		if rest, ok := strings.CutPrefix(name, annealingPrefix); ok {
			field, message = rest, t.config.GetAnnealing()
		}
		flag := map[string]string{"codeword_type": "type"}[field]
		if flag == "" {
			flag = protoflags.Flag(field)
		}
		given := fs.Lookup(flag)
		fromRows := slices.Contains([]string{"dimension", "rows", "element_type"}, field)
		switch {
		case fromRows && have[name] != texts[name]:
			return failure.Usagef("%s has %s %s, and %s is of %s: give the rows that belong to it", path, strings.ReplaceAll(field, "_", " "),
				have[name], source, texts[name])
		case fromRows || given == nil || slices.Contains(unrecorded, field): // without a flag: it is there for people
		case message.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(field)) == nil:
		case given.Changed && slices.Contains(limits, field):
		case given.Changed && have[name] != texts[name]:
			return failure.Usagef("--%s is %s, and %s has %s: leave the flag out", flag, have[name], source, texts[name])
		case given.Changed:
		default:
			if err := protoflags.Set(message, field, texts[name]); err != nil {
				return failure.Usagef("%s: %s: %w", source, name, err)
			}
		}
	}
	return nil
}

// recorded returns the fields that decide the result of a training, as texts, with the contract's
// defaults for unset ones.
func recorded(cfg *pb.TrainingConfig) map[string]string {
	full := proto.CloneOf(cfg)
	if full.GetCodewordType() == 0 {
		full.CodewordType = pb.ElementType_ELEMENT_TYPE_F16
	}
	if full.GetMetric() == 0 {
		full.Metric = pb.VectorMetric_VECTOR_METRIC_L2
	}
	if full.GetAlgorithm() == 0 {
		full.Algorithm = pb.TrainingAlgorithm_TRAINING_ALGORITHM_LLOYD
	}
	if full.GetInit() == 0 {
		full.Init = pb.CodebookInit_CODEBOOK_INIT_KMEANS_PLUS_PLUS
		if full.GetCodewords() > 4096 || full.GetMetric() == pb.VectorMetric_VECTOR_METRIC_INNER_PRODUCT {
			full.Init = pb.CodebookInit_CODEBOOK_INIT_RANDOM
		}
	}
	full.MaxIterations = proto.Uint32(maxIterations(cfg))
	if full.StableIterations == nil {
		full.StableIterations = proto.Uint32(1)
	}
	out := protoflags.Texts(full)
	maps.DeleteFunc(out, func(field, _ string) bool { return slices.Contains(unrecorded, field) })
	if full.GetAlgorithm() == pb.TrainingAlgorithm_TRAINING_ALGORITHM_ANNEALED || full.GetAnnealing() != nil {
		a := &pb.Annealing{Temperature: proto.Float64(1), CoolingRate: proto.Float64(0.05), LearningRate: proto.Float64(0.5),
			Momentum: proto.Float64(0), Trim: proto.Float64(0)}
		if full.GetAlgorithm() != pb.TrainingAlgorithm_TRAINING_ALGORITHM_ANNEALED {
			a = &pb.Annealing{}
		}
		proto.Merge(a, full.GetAnnealing())
		for field, text := range protoflags.Texts(a) {
			out[annealingPrefix+field] = text
		}
	}
	return out
}

// maxIterations returns the bound of the training's updates.
func maxIterations(cfg *pb.TrainingConfig) uint32 {
	if cfg.MaxIterations == nil {
		return 25
	}
	return cfg.GetMaxIterations()
}
