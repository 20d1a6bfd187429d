package tokenizer

import (
	"slices"
	"strings"
)

// Special holds the ids with a meaning of their own, None where the vocabulary has no such token.
type Special struct {
	BOS, EOS, EOT, EOM, UNK, PAD int32
}

func readSpecial(src Source, v *vocab, model string) (sp Special, err error) {
	bos, eos, unk := None, None, None
	if model == modelSPM {
		bos, eos, unk = 1, 2, 0 // where SentencePiece puts them unless told otherwise
	}
	for _, f := range []struct {
		to       *int32
		key      string
		fallback int32
	}{
		{&sp.BOS, keyBOS, bos},
		{&sp.EOS, keyEOS, eos},
		{&sp.EOT, keyEOT, None},
		{&sp.EOM, keyEOM, None},
		{&sp.UNK, keyUNK, unk},
		{&sp.PAD, keyPAD, None},
	} {
		if *f.to, err = idOr(src, f.key, len(v.pieces), f.fallback); err != nil {
			return Special{}, err
		}
	}
	return sp, nil
}

// endNames are pieces that end a turn in the well-known families, in the order in which one is taken as EOT when the
// metadata names none. A file that types one of them as plain text is mistaken: it is made a control piece.
var endNames = []string{
	"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
	"<｜end▁of▁sentence｜>", "<end_of_utterance>", "<|eom_id|>", "<|return|>", "<|call|>", "<turn|>",
}

// typedEndNames end a turn too, but could also be plain text that a vocabulary learned, so they count only if the file
// types them as control or user-defined.
var typedEndNames = []string{"</s>", "<EOT>", "_<EOT>", "▁<EOT>", "[EOT]", "[EOS]", "<|EOT|>"}

// endOfGeneration completes sp.EOT and sp.EOM and returns every id that ends a generation, ascending.
func endOfGeneration(v *vocab, sp *Special) []int32 {
	var ids []int32
	harmony := 0
	for i, name := range endNames {
		id, ok := v.byText[name]
		if !ok {
			continue
		}
		if v.kinds[id] == KindNormal || v.kinds[id] == KindUserDefined {
			v.kinds[id] = KindControl
		}
		if sp.EOT == None && i < len(endNames)-4 {
			sp.EOT = id
		}
		if sp.EOM == None && name == "<|eom_id|>" {
			sp.EOM = id
		}
		if name == "<|end|>" || name == "<|return|>" || name == "<|call|>" {
			harmony++
		}
		ids = append(ids, id)
	}
	for _, name := range typedEndNames {
		if id, ok := v.byText[name]; ok && (v.kinds[id] == KindControl || v.kinds[id] == KindUserDefined) {
			ids = append(ids, id)
		}
	}
	if harmony == 3 {
		// In this family <|end|> separates the channels of one answer.
		end := v.byText["<|end|>"]
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
	return slices.Compact(ids)
}

// stripsRight tells which special tokens swallow the white space that follows them: those of the phi-3 family, which the
// files do not mark, but for three.
func stripsRight(modelName string, v *vocab, id int32) bool {
	name := strings.ToLower(modelName)
	if !strings.Contains(name, "phi-3") && !strings.Contains(name, "phi3") {
		return false
	}
	switch v.pieces[id] {
	case "<unk>", "<s>", "<|endoftext|>":
		return false
	}
	switch v.kinds[id] {
	case KindControl, KindUserDefined, KindUnknown:
		return true
	}
	return false
}
