package model

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/embed"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	"github.com/millrace/millrace/gpuworker/tools"
)

// Facts are the properties of a model that its file states.
type Facts struct {
	Architecture string
	Quantization string
	WeightTypes  []string // of its matrices, the one with most bytes first
	Context      int      // longest sequence of the model
	Window       int      // positions that its layers with the smallest sliding window see; 0: every layer sees all
	Vocabulary   int
	Parameters   uint64
	WeightBytes  uint64
	HasTokenizer bool
	HasTemplate  bool     // an unnamed one
	Templates    []string // names of further ones, ascending
	// Format is how the unnamed template writes reasoning and tool calls.
	Format   tools.Format
	BOS, EOS int32 // -1: none
	EndIDs   []int32
	// SuppressedIDs are tokens that must not be generated, ascending.
	SuppressedIDs []int32
	// Sampling is the recommendation of the file.
	Sampling Sampling
	Pooling  arch.Pooling
	Width    int  // of vectors
	Rerank   bool // the model can rerank
	// WholeTexts: its layers see later positions. It makes vectors and generates nothing.
	WholeTexts bool
}

// describe reads the facts, the tokenizer and the chat templates of a file. A template that cannot
// be used does not fail the load, because the model can still serve prompts.
func (l *loader) describe(inst *Instance, file *gguf.File, spec *arch.Model) (err error) {
	if inst.Tokenizer, err = readTokenizer(file); err != nil {
		return err
	}
	if inst.Tokenizer != nil && inst.Tokenizer.VocabSize() > spec.Desc.Vocab {
		return fmt.Errorf("%w: the tokenizer has %d tokens, the embedding %d", arch.ErrInvalidModel,
			inst.Tokenizer.VocabSize(), spec.Desc.Vocab)
	}
	all, err := readTemplates(file)
	if err != nil {
		return err
	}
	inst.parse(all)
	inst.Reranker, inst.Dense = newReranker(all, inst.Tokenizer, spec), spec.Dense
	if inst.Facts, err = newFacts(file, spec, inst.Tokenizer, all); err != nil {
		return err
	}
	if inst.Tokenizer != nil {
		inst.grammars = newGrammars(inst.Tokenizer, inst.Facts)
	}
	return l.options.check(spec.Desc.Context)
}

// readFacts reads the facts of a file. It returns an error for a file that device cannot load.
func readFacts(f *gguf.File, device engine.Device) (Facts, error) {
	m, err := arch.Parse(f)
	if err != nil {
		return Facts{}, err
	}
	if err := refusal(m, device); err != nil {
		return Facts{}, err
	}
	tok, err := readTokenizer(f)
	if err != nil {
		return Facts{}, err
	}
	all, err := readTemplates(f)
	if err != nil {
		return Facts{}, err
	}
	return newFacts(f, m, tok, all)
}

// refusal returns the error by which device refuses a block or a weight type of m, and nil where it
// computes them all. Other errors of the device pass and say nothing about the file.
func refusal(m *arch.Model, device engine.Device) error {
	empty, err := device.NewModel(m.Desc)
	if err == nil {
		_ = empty.Close() // it holds nothing
	}
	for i := 0; err == nil && i < len(m.Bindings); i++ {
		if _, err = device.ResidentSize(m.Bindings[i].Desc); err != nil {
			err = fmt.Errorf("tensor %q: %w", m.Bindings[i].Tensor.Name, err)
		}
	}
	if errors.Is(err, engine.ErrUnsupported) {
		return err
	}
	return nil
}

// weightTypes returns the types of a model's matrices, by falling number of bytes.
func weightTypes(m *arch.Model) []string {
	bytes := map[engine.Type]uint64{}
	for _, b := range m.Bindings {
		if len(b.Desc.Dims) > 1 {
			bytes[b.Desc.Type] += b.Bytes()
		}
	}
	types := slices.SortedFunc(maps.Keys(bytes), func(a, b engine.Type) int {
		return cmp.Or(cmp.Compare(bytes[b], bytes[a]), cmp.Compare(a, b))
	})
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = gguf.Type(t).String()
	}
	return names
}

// window returns the smallest sliding window of a model's layers, 0 if none has one.
func window(desc *engine.ModelDesc) (smallest int) {
	for _, layer := range desc.Layers {
		w := layer.Mixer.Window
		if layer.Mixer.Bidirectional {
			w = max(0, 2*w-1) // on both sides
		}
		if w > 0 && (smallest == 0 || w < smallest) {
			smallest = w
		}
	}
	return smallest
}

// newReranker returns nil for a model that cannot rerank, as one of whole texts, which gives no logits.
func newReranker(all templates, tok *tokenizer.Tokenizer, m *arch.Model) *embed.Reranker {
	if m.Desc.WholeTexts() {
		return nil
	}
	return embed.NewReranker(all.named[rerankTemplate], tok, m.Classifier)
}

func newFacts(f *gguf.File, m *arch.Model, tok *tokenizer.Tokenizer, all templates) (Facts, error) {
	facts := Facts{
		Architecture: m.Architecture, Quantization: m.Quantization, Context: m.Desc.Context, Vocabulary: m.Desc.Vocab,
		WeightTypes: weightTypes(m), Window: window(&m.Desc),
		Parameters: m.Parameters, WeightBytes: m.Bytes, HasTokenizer: tok != nil, HasTemplate: all.unnamed != "",
		Templates: slices.Sorted(maps.Keys(all.named)), Format: tools.Detect(all.unnamed),
		BOS: tokenizer.None, EOS: tokenizer.None,
		Pooling: m.Pooling, Width: m.VectorWidth(), Rerank: newReranker(all, tok, m) != nil, WholeTexts: m.Desc.WholeTexts(),
	}
	if tok != nil {
		facts.BOS, facts.EOS, facts.EndIDs = tok.Special().BOS, tok.Special().EOS, tok.EndOfGeneration()
	}
	var err error
	facts.Sampling, facts.SuppressedIDs, err = readSampling(f.Metadata(), m.Desc.Vocab)
	return facts, err
}

// readTokenizer returns nil if the file has no tokenizer, or a tokenizer called "no_vocab" or
// "none", as converters write. Such a model works on token ids.
func readTokenizer(f *gguf.File) (*tokenizer.Tokenizer, error) {
	kind, ok, err := f.Metadata().String("tokenizer.ggml.model")
	if err != nil || !ok || kind == "no_vocab" || kind == "none" {
		return nil, err
	}
	return tokenizer.New(f.Metadata())
}

const (
	templateKey = "tokenizer.chat_template"
	// maxTemplates limits how many named templates of a file are read, maxTemplateName their names.
	maxTemplates    = 16
	maxTemplateName = 64
	// rerankTemplate is the name of the template that Instance.Reranker uses.
	rerankTemplate = "rerank"
)

// templates are the sources of a file's chat templates.
type templates struct {
	unnamed string // "": none
	named   map[string]string
}

// readTemplates reads the chat templates of a file: the unnamed one, and those under keys that end
// with a name. Of the named ones it reads the first sixteen with names in printable ASCII. The list
// tokenizer.chat_templates is redundant and ignored.
func readTemplates(f *gguf.File) (all templates, err error) {
	if all.unnamed, _, err = f.Metadata().String(templateKey); err != nil {
		return templates{}, err
	}
	all.named = map[string]string{}
	for _, key := range f.Metadata().Keys() {
		name, ok := strings.CutPrefix(key, templateKey+".")
		if !ok || name == "" || len(name) > maxTemplateName || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
			continue
		}
		source, ok, err := f.Metadata().String(key)
		if err == nil && ok && source != "" && len(all.named) < maxTemplates {
			all.named[name] = source
		}
	}
	return all, nil
}

// NamedTemplate is a chat template that a conversation may choose by name. If Problem is not nil,
// it cannot be used.
type NamedTemplate struct {
	Template *template.Template
	Format   tools.Format
	Problem  error
}

// parse compiles the instance's templates. They share slots, so that a file with many templates
// runs no more rendering processes at once than a file with one. Named templates get a process at
// first use.
func (i *Instance) parse(all templates) {
	slots := template.NewSlots()
	if all.unnamed != "" {
		i.Template, i.TemplateProblem = template.New(all.unnamed, template.Options{Slots: slots})
	}
	i.Named = map[string]NamedTemplate{}
	for name, source := range all.named {
		t, err := template.New(source, template.Options{Lazy: true, Slots: slots})
		i.Named[name] = NamedTemplate{t, tools.Detect(source), err}
	}
}

// closeTemplates ends the templates' processes. Closing twice is allowed.
func (i *Instance) closeTemplates() {
	if i.Template != nil {
		_ = i.Template.Close() // never fails
	}
	for _, named := range i.Named {
		if named.Template != nil {
			_ = named.Template.Close()
		}
	}
}

const samplingPrefix = "general.sampling."

// errNotHere: a recommendation uses a sampler, an order or a type of value that Millrace lacks.
var errNotHere = errors.New("needs a feature that Millrace lacks")

// Sampling is the recommendation of a model's file (general.sampling.*). nil: not recommended.
type Sampling struct {
	Temperature, TopP, MinP, RepetitionPenalty *float32
	TopK, PenaltyWindow                        *int32
	// Unapplied explains for every other recommendation why it is not applied.
	Unapplied []string
}

// Empty reports whether nothing is recommended.
func (s Sampling) Empty() bool {
	return s.Temperature == nil && s.TopP == nil && s.MinP == nil && s.RepetitionPenalty == nil && s.TopK == nil && s.PenaltyWindow == nil
}

// readSampling reads the recommendations of a file, and the ids that it suppresses. It lists values
// out of range and unknown samplers in Unapplied instead of failing. Suppressed ids outside the
// vocabulary are ignored.
func readSampling(meta *gguf.Metadata, vocabulary int) (s Sampling, suppressed []int32, err error) {
	for _, key := range meta.Keys() {
		name, ok := strings.CutPrefix(key, samplingPrefix)
		if !ok {
			continue
		}
		v, err := anyNumber(meta, key)
		if err == nil {
			err = s.set(name, v, vocabulary)
		}
		if err != nil {
			s.Unapplied = append(s.Unapplied, key+" "+err.Error())
		}
	}
	ids, _, err := meta.Ints("tokenizer.ggml.suppress_tokens")
	for _, id := range ids {
		if id >= 0 && id < int64(vocabulary) {
			suppressed = append(suppressed, int32(id))
		}
	}
	slices.Sort(suppressed)
	return s, slices.Compact(suppressed), err
}

// set applies one recommendation. Values that mean "off" to the file's own tools mean it here too.
func (s *Sampling) set(name string, v float64, vocabulary int) error {
	float := func(to **float32, most float64, above0 bool) error {
		if !(v >= 0 && v <= most) || above0 && v == 0 {
			if above0 {
				return fmt.Errorf("is %v, want a number above 0 and at most %v", v, most)
			}
			return fmt.Errorf("is %v, want 0 to %v", v, most)
		}
		x := float32(v)
		*to = &x
		return nil
	}
	whole := func(to **int32, least float64) error {
		if v != float64(int32(v)) || v < least {
			return fmt.Errorf("is %v, want a whole number of at least %v", v, least)
		}
		x := int32(v)
		*to = &x
		return nil
	}
	switch name {
	case "temp":
		v = max(v, 0) // below 0 is greedy
		return float(&s.Temperature, 100, false)
	case "top_p":
		return float(&s.TopP, 1, true)
	case "min_p":
		return float(&s.MinP, 1, false)
	case "penalty_repeat":
		return float(&s.RepetitionPenalty, 100, true)
	case "top_k":
		if v < 0 || v > float64(vocabulary) { // all tokens
			v = 0
		}
		return whole(&s.TopK, 0)
	case "penalty_last_n":
		return whole(&s.PenaltyWindow, -1)
	}
	return errNotHere
}

// anyNumber returns a number of any type.
func anyNumber(meta *gguf.Metadata, key string) (float64, error) {
	f, _, err := meta.Float(key)
	if err == nil {
		return f, nil
	}
	n, _, intErr := meta.Int(key)
	if intErr == nil {
		return float64(n), nil
	}
	return 0, errNotHere
}
