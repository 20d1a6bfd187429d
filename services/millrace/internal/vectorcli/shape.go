package vectorcli

import (
	"encoding/hex"
	"fmt"

	"github.com/millrace/millrace/internal/codebookfile"
	"github.com/millrace/millrace/internal/safetensors"
	"github.com/millrace/millrace/internal/vectorfile"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/protoflags"
)

// The texts of files for the contract's enums.
var (
	kindNames = map[pb.CodebookKind]string{
		pb.CodebookKind_CODEBOOK_KIND_FLAT: codebookfile.Flat, pb.CodebookKind_CODEBOOK_KIND_PRODUCT: codebookfile.Product,
	}
	metricNames = map[pb.VectorMetric]string{
		pb.VectorMetric_VECTOR_METRIC_L2: codebookfile.L2, pb.VectorMetric_VECTOR_METRIC_INNER_PRODUCT: codebookfile.InnerProduct,
		pb.VectorMetric_VECTOR_METRIC_COSINE: codebookfile.Cosine,
	}
	algorithmNames = map[pb.TrainingAlgorithm]string{
		pb.TrainingAlgorithm_TRAINING_ALGORITHM_LLOYD:    codebookfile.Lloyd,
		pb.TrainingAlgorithm_TRAINING_ALGORITHM_ANNEALED: codebookfile.Annealed,
	}
	tensorTypes = map[pb.ElementType]safetensors.Type{
		pb.ElementType_ELEMENT_TYPE_F32: safetensors.F32, pb.ElementType_ELEMENT_TYPE_F16: safetensors.F16,
		pb.ElementType_ELEMENT_TYPE_BF16: safetensors.BF16,
	}
	rowTypes = map[pb.ElementType]vectorfile.ElementType{
		pb.ElementType_ELEMENT_TYPE_F32: vectorfile.F32, pb.ElementType_ELEMENT_TYPE_F16: vectorfile.F16,
		pb.ElementType_ELEMENT_TYPE_BF16: vectorfile.BF16, pb.ElementType_ELEMENT_TYPE_U8: vectorfile.U8,
		pb.ElementType_ELEMENT_TYPE_I8: vectorfile.I8,
	}
)

// key returns the key that has a value, or the zero key.
func key[K, V comparable](m map[K]V, want V) (found K) {
	for k, v := range m {
		if v == want {
			found = k
		}
	}
	return found
}

// shapeOf returns a file's shape for a message.
func shapeOf(c codebookfile.Codebook) *pb.CodebookShape {
	return &pb.CodebookShape{
		Kind: key(kindNames, c.Kind), Metric: key(metricNames, c.Metric), Dimension: uint32(c.Dimension), Codewords: uint32(c.Codewords),
		Subspaces: uint32(c.Subspaces), CodewordType: key(tensorTypes, c.CodewordType),
	}
}

// publicDigest returns the digest of a codebook as messages have it.
func publicDigest(c codebookfile.Codebook) string {
	d := c.PublicDigest()
	return hex.EncodeToString(d[:])
}

// codeBytes returns the size of one code in a message.
func codeBytes(s *pb.CodebookShape) int { return vectorfile.CodeType(int(s.GetCodewords())).Size() }

// usable returns an error if a server's shape is impossible in files and messages.
func usable(s *pb.CodebookShape) error {
	c := codebookfile.Codebook{
		Kind: kindNames[s.GetKind()], Metric: metricNames[s.GetMetric()], Dimension: int(s.GetDimension()), Codewords: int(s.GetCodewords()),
		Subspaces: int(s.GetSubspaces()), CodewordType: tensorTypes[s.GetCodewordType()],
		// Not part of the shape.
		ElementType: vectorfile.F32, Algorithm: codebookfile.Lloyd, Numerics: "any",
	}
	if err := c.Check(); err != nil {
		return fmt.Errorf("the server reports an impossible codebook: %w", err)
	}
	return nil
}

// shapeText writes a shape for people: 4096 x 128 f16, l2.
func shapeText(s *pb.CodebookShape) string {
	if s == nil {
		return ""
	}
	text := fmt.Sprintf("%d x %d %s, %s", s.GetCodewords(), s.GetDimension(), protoflags.Name(s.GetCodewordType()), protoflags.Name(s.GetMetric()))
	if s.GetKind() == pb.CodebookKind_CODEBOOK_KIND_PRODUCT {
		text = fmt.Sprintf("%d x %d in %d %s, %s", s.GetCodewords(), s.GetDimension(), s.GetSubspaces(), protoflags.Name(s.GetCodewordType()), protoflags.Name(s.GetMetric()))
	}
	return text
}
