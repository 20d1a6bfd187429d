package arch

import (
	"slices"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// Pooling is the pooling_type of a file: how the model makes one output of a text.
type Pooling int

// Poolings, with the numbers that files have.
const (
	PoolingNone  Pooling = 0 // not stated: the model generates
	PoolingMean  Pooling = 1 // the mean of all hidden states
	PoolingFirst Pooling = 2 // the hidden state of the first token
	PoolingLast  Pooling = 3 // the hidden state of the last token
	PoolingRank  Pooling = 4 // scores by Classifier
)

// Classifier is the head of a reranker: the rows of cls.output.weight. The score of a text is the
// softmax of the products of both with the hidden state of its last token.
type Classifier struct{ Yes, No []float32 }

const (
	poolingKey     = "pooling_type"
	labelsKey      = "classifier.output_labels"
	classifierName = "cls.output.weight"
)

// readPooling reads how a model pools, and the head of a reranker.
func (r *reader) readPooling(hidden int) (Pooling, *Classifier) {
	v, ok, err := number(r.meta, r.prefix+poolingKey)
	switch {
	case err != nil:
		r.fail(err)
	case !ok || v == -1 || v == 0:
		return PoolingNone, nil
	case v != float64(int(v)) || v < 0 || Pooling(v) > PoolingRank:
		r.fail(unsupported("pooling of an unknown kind (metadata %s%s is %v), want 0 to 4", r.prefix, poolingKey, v))
	case Pooling(v) == PoolingRank:
		return PoolingRank, r.readClassifier(hidden)
	}
	return Pooling(v), nil
}

// readClassifier reads the rows of the labels "yes" and "no". Other classifiers give scores that
// mean something else, and are refused by name.
func (r *reader) readClassifier(hidden int) *Classifier {
	labels, _, err := r.meta.Strings(r.prefix + labelsKey)
	if err != nil || len(labels) != 2 || !slices.Contains(labels, "yes") || !slices.Contains(labels, "no") {
		first := labels[:min(2, len(labels))] // a file may have millions
		r.fail(unsupported("a classifier with the labels %.64q of %d (metadata %s%s), want \"yes\" and \"no\"", first, len(labels), r.prefix, labelsKey))
		return nil
	}
	if !r.hasTensor(classifierName) {
		r.fail(unsupported("reranking without tensor %s (metadata %s%s is %d)", classifierName, r.prefix, poolingKey, PoolingRank))
		return nil
	}
	rows, err := r.floats(classifierName, int64(hidden), 2)
	if err != nil {
		r.fail(err)
		return nil
	}
	yes := slices.Index(labels, "yes")
	return &Classifier{Yes: rows[yes*hidden : (yes+1)*hidden], No: rows[(1-yes)*hidden : (2-yes)*hidden]}
}

// isClassifier reports whether a tensor belongs to the head of a reranker. It has no role, because
// the worker multiplies by it and not the engine.
func (m *Model) isClassifier(t gguf.Tensor) bool {
	return m.Classifier != nil && t.Name == classifierName
}
