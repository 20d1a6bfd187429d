package arch

import (
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// fileTypes names general.file_type for the mixtures whose every tensor an engine may run.
var fileTypes = map[uint64]string{
	0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1",
	10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
	19: "IQ2_XXS", 20: "IQ2_XS", 22: "IQ3_XS", 23: "IQ3_XXS", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
	30: "IQ4_XS", 32: "BF16", 38: "MXFP4_MOE", 39: "NVFP4",
}

// quantization returns the label of the file: its file type if that is known, else the type that
// holds most weights. A file type that names a plain type is believed only if that type occurs.
func quantization(meta *gguf.Metadata, bindings []Binding) (string, error) {
	weights := map[gguf.Type]uint64{}
	for _, b := range bindings {
		weights[b.Tensor.Type] += b.Tensor.Elements()
	}
	id, ok, err := meta.Uint("general.file_type")
	if err != nil {
		return "", err
	}
	if label, known := fileTypes[id]; ok && known {
		t, plain := gguf.ParseType(label)
		if !plain || weights[t] > 0 {
			return label, nil
		}
	}
	var most gguf.Type
	for _, t := range slices.Sorted(maps.Keys(weights)) {
		if weights[t] > weights[most] || weights[most] == 0 {
			most = t
		}
	}
	return most.String(), nil
}

func typeError(t gguf.Tensor, want any) error {
	return fmt.Errorf("tensor %s is %v, want %v: %w", t.Name, t.Type, want, ErrUnsupportedType)
}
