package arch

import "github.com/millrace/millrace/gpuworker/gguf"

// refuseParts refuses a GGUF file that holds something other than one whole model: a part of one, or what belongs to one. The file has
// the given number of tensors.
func refuseParts(meta *gguf.Metadata, tensors int) error {
	if _, has := meta.Value("tokenizer.ggml.tokens"); has && tensors == 0 {
		return unsupported("the file holds a vocabulary and no weights, as llama.cpp's ggml-vocab files do: get the file of the model itself")
	}
	count, _, err := meta.Uint("split.count")
	if err != nil {
		return err
	}
	number, _, err := meta.Uint("split.no")
	if err != nil {
		return err
	}
	if count > 1 {
		return unsupported("the file is part %d of a model split into %d files: merge them into one with llama.cpp's "+
			"llama-gguf-split --merge", number+1, count)
	}
	kind, ok, err := meta.String("general.type")
	if err != nil {
		return err
	}
	if ok && kind != "" && kind != "model" {
		return unsupported("metadata general.type is %.64q, want \"model\": adapters, projectors and the like are not models", kind)
	}
	return nil
}
