package tokenizer

import "slices"

// endNames end a generation in every vocabulary that has them. If the metadata names no end-of-turn
// token, the first of those with turn = true is used.
var endNames = []struct {
	name string
	turn bool
}{
	{"<|eot_id|>", true}, {"<|im_end|>", true}, {"<|end|>", true}, {"<end_of_turn>", true}, {"<|endoftext|>", true},
	{"<|end_of_text|>", true}, {"<｜end▁of▁sentence｜>", true}, {"<end_of_utterance>", true},
	{"<|eom_id|>", false}, {"<|return|>", false}, {"<|call|>", false}, {"<|calls|>", false}, {"<|flush|>", false}, {"<turn|>", false},
	// Text after one of these belongs to another file.
	{"<|fim_pad|>", false}, {"<fim-pad>", false}, {"<|fim_repo|>", false}, {"<|repo_name|>", false}, {"<fim-repo>", false},
	{"<|file_sep|>", false}, {"<fim_pad>", false},
	// A model that writes this waits for a tool's answer.
	{"<|tool_response>", false},
}

// controlEndNames end a generation if they are control pieces. Otherwise they could be text that a
// vocabulary learned.
var controlEndNames = []string{
	"</s>", "<EOT>", "_<EOT>", "▁<EOT>", "[EOT]", "[EOS]", "<|EOT|>", "<REPO>", "<reponame>", "<eos>", "[e~[", "<|end_of_msg|>",
	// Padding: nothing can follow it.
	"<PAD>", "[PAD]",
}

// endKeys name further tokens that end a generation.
var endKeys = []string{"tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id"}

// endOfGeneration completes sp.EOT and sp.EOM and returns every id that ends a generation,
// ascending. The kinds of v have been corrected.
func endOfGeneration(src Source, v *vocab, sp *Special) ([]int32, error) {
	var ids []int32
	for _, e := range endNames {
		id, ok := v.byText[e.name]
		if !ok {
			continue
		}
		if sp.EOT == None && e.turn {
			sp.EOT = id
		}
		if sp.EOM == None && e.name == "<|eom_id|>" {
			sp.EOM = id
		}
		ids = append(ids, id)
	}
	for _, name := range controlEndNames {
		if id, ok := v.byText[name]; ok && v.kinds[id] == KindControl {
			ids = append(ids, id)
		}
	}
	for _, key := range endKeys {
		id, err := idOr(src, key, len(v.pieces), None)
		if err != nil {
			return nil, err
		}
		if id != None {
			ids = append(ids, id)
		}
	}
	if end, ok := v.byText["<|end|>"]; ok && v.hasChannels() {
		ids = slices.DeleteFunc(ids, func(id int32) bool { return id == end })
		if sp.EOT == end {
			sp.EOT = None
		}
	}
	for _, id := range []int32{sp.EOS, sp.EOT, sp.EOM} {
		if id != None {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// hasChannels reports whether the vocabulary is of a family in which <|end|> separates the channels
// of one answer.
func (v *vocab) hasChannels() bool {
	both := func(a, b string) bool {
		_, hasA := v.byText[a]
		_, hasB := v.byText[b]
		return hasA && hasB
	}
	return both("<|return|>", "<|call|>") || both("<|calls|>", "<|flush|>")
}
