package tokenizer

import (
	"strconv"
	"strings"
)

// correctKinds turns pieces that published files mark as text, although they are structure, into
// control pieces. A text from outside could otherwise end a turn or start one.
func (v *vocab) correctKinds(sp Special) {
	// A token that the metadata assigns a role is structure. A plain piece keeps its kind unless
	// its name is a marker, because some files name a comma as BOS.
	for _, id := range []int32{sp.BOS, sp.EOS, sp.EOT, sp.EOM, sp.PAD, sp.UNK} {
		if id == None {
			continue
		}
		if v.kinds[id] == KindUserDefined || v.kinds[id] == KindNormal && isMarker(v.pieces[id]) {
			v.kinds[id] = KindControl
		}
	}
	for _, name := range markers {
		if id, ok := v.byText[name]; ok && (v.kinds[id] == KindNormal || v.kinds[id] == KindUserDefined) {
			v.kinds[id] = KindControl
		}
	}
	for _, name := range typedMarkers {
		if id, ok := v.byText[name]; ok && v.kinds[id] == KindUserDefined {
			v.kinds[id] = KindControl
		}
	}
	v.correctStrike()
	v.correctPadding()
}

// markers are structure in every vocabulary that has them, whatever kind the file states.
var markers = []string{
	"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>",
	"<end_of_utterance>", "<|eom_id|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<turn|>",
	"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|fim_repo|>", "<|repo_name|>", "<|file_sep|>",
	"<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<fim-pad>", "<fim-repo>", "<fim_pad>", "<|tool_response>",
	"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>",
}

// typedMarkers are structure if the file marks them as special. Otherwise they could be text that a
// vocabulary learned.
var typedMarkers = []string{
	"<EOT>", "_<EOT>", "▁<EOT>", "[EOT]", "[EOS]", "<|EOT|>", "<PRE>", "<SUF>", "<MID>", "<PAD>", "<REPO>", "<reponame>", "<eos>", "[e~[",
	// Starts of turns, which early files of Gemma, Phi-3 and many ChatML models mark as
	// user-defined. A message could otherwise start a turn with them.
	"<|im_start|>", "<|im_sep|>", "<start_of_turn>", "<|turn>", "<|start_header_id|>", "<|end_header_id|>", "<|start_of_role|>",
	"<|end_of_role|>", "<|system|>", "<|user|>", "<|assistant|>", "<｜User｜>", "<｜Assistant｜>", "<|im_user|>", "<|im_assistant|>",
	"<|im_system|>", "<|im_middle|>", "]~b]", "]~!b[", "<|end_of_msg|>", "[PAD]",
}

// correctStrike makes "</s>" a control piece if "<s>" is one, because phi-3 marks the two
// differently. If both are user-defined, they are the tags of struck-out text.
func (v *vocab) correctStrike() {
	begin, has := v.byText["<s>"]
	end, ok := v.byText["</s>"]
	if has && ok && v.kinds[begin] == KindControl && v.kinds[end] == KindUserDefined {
		v.kinds[end] = KindControl
	}
}

// correctPadding turns the rows "[PAD<id>]", with which converters fill a vocabulary up to the
// model's width, into control pieces. No training has seen them.
func (v *vocab) correctPadding() {
	for i, k := range v.kinds {
		if k != KindUserDefined {
			continue
		}
		if rest, ok := strings.CutPrefix(v.pieces[i], "[PAD"); ok && rest == strconv.Itoa(i)+"]" {
			v.kinds[i] = KindControl
		}
	}
}

// isMarker reports whether a piece looks like structure: in angle or square brackets and without a
// space.
func isMarker(piece string) bool {
	n := len(piece)
	if n < 3 || strings.ContainsAny(piece, " \t\nĠ") {
		return false
	}
	return piece[0] == '<' && piece[n-1] == '>' || piece[0] == '[' && piece[n-1] == ']'
}
