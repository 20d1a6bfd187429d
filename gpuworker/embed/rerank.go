package embed

import (
	"context"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// Query is the text by which documents are scored.
type Query struct {
	Text        string
	Instruction string // "": that of the template
}

// Reranker scores documents with one model: by the logits of "yes" and "no" after a prompt, or by
// the classifier of the model's file. It is immutable.
type Reranker struct {
	form       form
	tokens     *tokenizer.Tokenizer
	choices    []int32          // the tokens "yes" and "no"
	classifier *arch.Classifier // nil: the model's head has the two tokens
}

// NewReranker returns the reranker of a model, or nil if the model cannot rerank. template is the
// file's template named "rerank", "" for none.
func NewReranker(template string, tokens *tokenizer.Tokenizer, classifier *arch.Classifier) *Reranker {
	if tokens == nil {
		return nil
	}
	if template == "" && single(tokens, "<|im_start|>", true) >= 0 && single(tokens, "<|im_end|>", true) >= 0 {
		template = qwen3
	}
	form, ok := parseForm(template)
	yes, no := single(tokens, "yes", false), single(tokens, "no", false)
	if !ok || classifier == nil && (yes < 0 || no < 0) {
		return nil
	}
	return &Reranker{form: form, tokens: tokens, choices: []int32{yes, no}, classifier: classifier}
}

// single returns the token that a text is, or -1 if it is several.
func single(t *tokenizer.Tokenizer, text string, special bool) int32 {
	ids := t.Encode(text, tokenizer.EncodeOptions{ParseSpecial: special})
	if len(ids) != 1 {
		return -1
	}
	return ids[0]
}

// NeedsHiddenRows reports whether scores are made of hidden rows, which some engines do not give.
func (r *Reranker) NeedsHiddenRows() bool { return r.classifier != nil }

// Prompt is the prompt of one document.
type Prompt struct {
	IDs       []int32
	Truncated bool
	shared    int // leading tokens that all documents of the query have
}

// Encode encodes a text; it may wait for its turn.
type Encode func(text string, o tokenizer.EncodeOptions) ([]int32, error)

// Prompts returns the prompts of documents, each of at most context tokens. It returns
// batch.ErrTooLong for a longer one, unless it may cut the document and that is enough.
func (r *Reranker) Prompts(encode Encode, q Query, documents []string, context int, truncate bool) ([]Prompt, error) {
	if err := r.form.check(q); err != nil {
		return nil, err
	}
	bare, err := r.encode(encode, q, "", context)
	if err != nil {
		return nil, err
	}
	if len(bare) > context {
		return nil, fmt.Errorf("%w: query and instruction have more than %d tokens with the template, which is the context of this model",
			batch.ErrTooLong, context)
	}
	out := make([]Prompt, len(documents))
	for i, document := range documents {
		p := &out[i]
		if p.IDs, err = r.encode(encode, q, document, context); err != nil {
			return nil, err
		}
		if len(p.IDs) > context && truncate {
			p.Truncated = true
			p.IDs, err = r.cut(encode, q, document, context, len(bare))
		}
		if err != nil {
			return nil, err
		}
		if len(p.IDs) > context {
			return nil, fmt.Errorf("%w: document %d and its query have more than %d tokens; this model serves at most %d: "+
				"cut it, or set truncate", batch.ErrTooLong, i, context, context)
		}
		for p.shared < min(len(bare), len(p.IDs)) && bare[p.shared] == p.IDs[p.shared] {
			p.shared++
		}
	}
	return out, nil
}

// encode returns the ids of a prompt. Of one that is longer than the context only the beginning is
// certain.
func (r *Reranker) encode(encode Encode, q Query, document string, context int) ([]int32, error) {
	text, own := r.form.text(q, document)
	return encode(text, tokenizer.EncodeOptions{SpecialWithin: own, MaxIDs: context})
}

// cut returns a prompt that fits the context, with the beginning of the document. Where two pieces
// meet, tokens may merge or divide, so it cuts one token more until the prompt fits.
func (r *Reranker) cut(encode Encode, q Query, document string, context, bare int) ([]int32, error) {
	ids, err := encode(document, tokenizer.EncodeOptions{MaxIDs: context})
	if err != nil {
		return nil, err
	}
	for keep := min(context-bare, len(ids)); keep >= 0; keep-- {
		bytes := 0
		for _, id := range ids[:keep] {
			piece, _ := r.tokens.Piece(id)
			bytes += len(piece)
		}
		bytes = min(bytes, len(document))
		for bytes > 0 && bytes < len(document) && !utf8.RuneStart(document[bytes]) {
			bytes--
		}
		all, err := r.encode(encode, q, document[:bytes], context)
		if err != nil || len(all) <= context {
			return all, err
		}
		keep -= len(all) - context - 1
	}
	return nil, fmt.Errorf("%w: query and instruction leave no room for a document", batch.ErrTooLong)
}

// Scores returns the score of each prompt, in [0, 1], and how many tokens came from the prefix
// cache. The shared beginning of a query's documents is computed once; documents themselves are not cached.
func (r *Reranker) Scores(ctx context.Context, loop Loop, prompts []Prompt, job Job) (scores []float32, cached int, err error) {
	scores = make([]float32, len(prompts))
	cached, err = run(ctx, loop, len(prompts), func(i int) batch.Request {
		q := job.request(prompts[i].IDs)
		q.Shared = prompts[i].shared
		q.Bypass = q.Bypass || q.Shared == 0
		if r.classifier != nil {
			q.Pool = batch.PoolLast
		} else {
			q.Choices = r.choices
		}
		return q
	}, func(i int, end *batch.Done) {
		if r.classifier != nil {
			scores[i] = probability(dot(r.classifier.Yes, end.Vector), dot(r.classifier.No, end.Vector))
		} else {
			scores[i] = probability(float64(end.Choices[0]), float64(end.Choices[1]))
		}
	})
	return scores, cached, err
}

// probability returns the softmax of the first of two logits.
func probability(yes, no float64) float32 { return float32(1 / (1 + math.Exp(no-yes))) }

func dot(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}
