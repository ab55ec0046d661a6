#!/usr/bin/env python3
"""The program from outside: exit codes, messages, JSONL contracts, resuming. Standard library only.

    cli_test.py QUADRILLE SOURCE_DIR [unittest options]
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

QUADRILLE = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 2 else None
SOURCE = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else None
VOLATILE = ("time/", "throughput/", "memory/")

TINY = """
[run]
dir = "{dir}"
seed = 3
steps = {steps}
[model]
init = "random"
family = "qwen3_moe"
tokenizer = "{source}/configs/demo/tokenizer"
layers = 2
hidden = 32
heads = 2
kv_heads = 1
head_dim = 16
experts = 5
top_k = 2
expert_width = 16
[data]
train = "{data}"
[eval]
data = "{data}"
every = 3
max_rows = 8
[rollout]
max_new_tokens = 6
[reward]
kind = "{kind}"
pattern = "[0-3]"
[algorithm]
preset = "{preset}"
group_size = 4
prompts_per_step = 5
[optimizer]
lr = 1e-2
[checkpoint]
every = 2
"""


class Program(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="quadrille-cli-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_it(self, *args, code=0, timeout=120):
        done = subprocess.run([QUADRILLE, *map(str, args)], capture_output=True, text=True, timeout=timeout,
                              cwd=self.folder, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}\n{done.stderr}")
        return done

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def jsonl(self, path):
        return [json.loads(line) for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]

    def golden(self, case="qwen3_moe_base"):
        return SOURCE / "tests/goldens/parity" / case


class Usage(Program):
    def test_help_of_each_subcommand_has_an_example(self):
        for command in (["train"], ["generate"], ["score"], ["tokenize"], ["eval"], ["inspect"],
                        ["convert", "upcycle"], ["convert", "checkpoint"]):
            self.assertIn("Example", self.run_it(*command, "--help").stdout, command)
        self.assertIn("libtorch", self.run_it("--version").stdout)
        self.assertIn("[optimizer]", self.run_it("train", "--help-config").stdout)

    def test_documentation_is_what_the_program_says(self):
        page = self.run_it("train", "--help-config=markdown").stdout
        self.assertEqual(page, (SOURCE / "docs/configuration.md").read_text(encoding="utf-8"), "run `make docs`")

    def test_wrong_usage_is_2_in_one_line(self):
        for args in (["nothing"], [], ["train"], ["train", "--nope"], ["score", "--model"],
                     ["score", "--model", "m", "--input", "i", "--output", "o", "--threads", "100000"]):
            done = self.run_it(*args, code=2)
            self.assertTrue(done.stderr.startswith("quadrille: "), done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_configuration_mistakes(self):
        data = self.write("d.jsonl", '{"prompt": "1=", "answer": "1"}\n')
        base = TINY.format(dir=self.folder / "r", steps=2, source=SOURCE, data=data, kind="exact", preset="grpo")
        config = self.write("c.toml", base)
        for assignment, code, expected in (
                ("optimizer.lrr=1", 2, "optimizer.lr"), ("run.steps=many", 2, "an integer"),
                ("run.steps=0", 1, "run.steps = 0"), ("data.train=missing.jsonl", 1, "missing.jsonl"),
                ("algorithm.preset=gspo", 1, "gspo"), ("model.top_k=9", 1, "9"),
                ("model.tokenizer=nowhere", 1, "nowhere"), ("model.path=some/folder", 1, "contradict"),
                ("model.kv_heads=-1", 1, "kv_heads"), ("model.vocab=100000000", 1, "GiB"),
                ("run.threads=100000", 1, "1024"), ("rollout.temperature=0", 1, "rollout.temperature"),
                ("eval.max_rows=-1", 1, "max_rows"), ("data.max_prompt_tokens=1", 1, "d.jsonl:1"),
                ("model.max_positions=1", 1, "d.jsonl:1")):
            done = self.run_it("train", "--config", config, "--set", assignment, code=code)
            self.assertIn(expected, done.stderr, assignment)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertFalse((self.folder / "r").exists(), assignment)
        self.run_it("train", "--config", "none.toml", code=1)
        data.write_text('{"prompt": "1=", "answer": "1"}\n{"prompt": 7}\n')
        self.assertIn("d.jsonl:2", self.run_it("train", "--config", config, code=1).stderr)

    def test_dry_run_writes_nothing(self):
        data = self.write("d.jsonl", '{"prompt": "1=", "answer": "1"}\n')
        config = self.write("c.toml", TINY.format(dir=self.folder / "r", steps=2, source=SOURCE, data=data, kind="exact",
                                                  preset="grpo"))
        self.assertIn("memory", self.run_it("train", "--config", config, "--dry-run").stdout)
        self.assertFalse((self.folder / "r").exists())


class Contracts(Program):
    def test_generate_then_score(self):
        rows = [{"id": f"r{i}", "tokens": [(7 * i + j) % 90 + 1 for j in range(1 + 5 * i)]} for i in range(4)]
        source = self.write("in.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
        self.run_it("generate", "--model", self.golden(), "--input", source, "--output", "out.jsonl",
                    "--max-new-tokens", 20, "--seed", 5)
        out = self.jsonl(self.folder / "out.jsonl")
        self.assertEqual([r["id"] for r in out], [r["id"] for r in rows])
        again = [{"id": r["id"], "tokens": q["tokens"] + r["tokens"]} for q, r in zip(rows, out)]
        source = self.write("again.jsonl", "".join(json.dumps(r) + "\n" for r in again))
        self.run_it("score", "--model", self.golden(), "--input", source, "--output", "scores.jsonl")
        for query, made, score in zip(rows, out, self.jsonl(self.folder / "scores.jsonl")):
            self.assertIsNone(score["logprobs"][0])
            self.assertEqual(len(score["logprobs"]), len(query["tokens"]) + len(made["tokens"]))
            for a, b in zip(made["logprobs"], score["logprobs"][len(query["tokens"]):]):
                self.assertLessEqual(abs(a - b), 1e-5)

    def test_same_seed_same_answer_whatever_the_batch(self):
        rows = [{"id": i, "tokens": [i + 1, 2, 3]} for i in range(5)]
        answers = []
        for chosen in (rows, rows[3:4]):
            source = self.write("in.jsonl", "".join(json.dumps(r) + "\n" for r in chosen))
            self.run_it("generate", "--model", self.golden(), "--input", source, "--output", "out.jsonl",
                        "--max-new-tokens", 12, "--temperature", 0.7, "--top-p", 0.9)
            answers.append({r["id"]: r for r in self.jsonl(self.folder / "out.jsonl")})
        self.assertEqual(answers[0][3]["tokens"], answers[1][3]["tokens"])
        self.assertIn("sampling_logprobs", answers[0][3])

    def test_input_mistakes_name_file_and_line(self):
        source = self.write("in.jsonl", '{"id": 1, "tokens": [1, 2]}\n{"id": 2, "tokens": [1, 99999]}\n')
        self.assertIn("in.jsonl:2", self.run_it("score", "--model", self.golden(), "--input", source, "--output", "o.jsonl",
                                               code=1).stderr)
        source.write_text('{"id": 1, "tokens": [1, 2]}\n\nnot json\n')
        self.assertIn("in.jsonl:3", self.run_it("score", "--model", self.golden(), "--input", source, "--output", "o.jsonl",
                                               code=1).stderr)
        for line in ('{"id":' + "[" * 100000 + "]" * 100000 + ',"tokens": [1]}', '{"tokens": [1]}\0'):
            source.write_text(line + "\n")
            self.assertIn("in.jsonl:1", self.run_it("score", "--model", self.golden(), "--input", source, "--output",
                                                   "o.jsonl", code=1).stderr)
        self.assertFalse((self.folder / "o.jsonl").exists())

    def test_output_into_a_pipe(self):
        source = self.write("in.jsonl", '{"id": 1, "tokens": [1, 2]}\n')
        # What /dev/stdout is, without the harm to it.
        link = self.folder / "stdout"
        link.symlink_to("/proc/self/fd/1")
        done = self.run_it("score", "--model", self.golden(), "--input", source, "--output", link)
        self.assertEqual(json.loads(done.stdout)["id"], 1)
        self.assertTrue(link.is_symlink())

    def test_full_standard_output(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([QUADRILLE, "inspect", self.golden()], stdout=full, stderr=subprocess.PIPE, text=True,
                                  check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output", done.stderr)

    def test_weights_that_are_not_numbers(self):
        broken = self.folder / "broken"
        shutil.copytree(self.golden(), broken)
        weights = broken / "model.safetensors"
        data = bytearray(weights.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        data[start:] = b"\xff" * (len(data) - start)
        weights.write_bytes(bytes(data))
        source = self.write("in.jsonl", '{"id": 1, "tokens": [1, 2]}\n')
        for command in ("score", "generate"):
            error = self.run_it(command, "--model", broken, "--input", source, "--output", "o.jsonl", code=1).stderr
            self.assertIn("damaged", error)
            self.assertNotIn("internal", error)
        self.assertFalse((self.folder / "o.jsonl").exists())

    def test_inspect(self):
        for given in (["--model"], []):
            self.assertIn("qwen3_moe", self.run_it("inspect", *given, self.golden()).stdout)
        self.run_it("inspect", self.golden(), "--model", self.golden(), code=2)
        self.run_it("inspect", self.folder, code=1)
        broken = self.folder / "broken"
        shutil.copytree(self.golden(), broken)
        weights = broken / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-5])
        self.assertIn("model.safetensors", self.run_it("inspect", "--model", broken, code=1).stderr)


class Training(Program):
    def config(self, name, steps, preset="grpo", kind="regex"):
        data = self.folder / "data.jsonl"
        if not data.exists():
            with open(data, "w", encoding="utf-8") as out:
                for i in range(23):
                    out.write(json.dumps({"prompt": f"{i:02d}=", "answer": f"{i % 10}"} if preset != "sft" else
                                         {"prompt": f"{i:02d}=", "completion": f"{i % 10}", "answer": f"{i % 10}"}) + "\n")
        return self.write(f"{name}.toml", TINY.format(dir=self.folder / name, steps=steps, source=SOURCE, data=data,
                                                      kind=kind, preset=preset))

    def metrics(self, name):
        rows = self.jsonl(self.folder / name / "metrics.jsonl")
        return [{k: v for k, v in row.items() if not k.startswith(VOLATILE)} for row in rows]

    def test_run_folder_and_refusal(self):
        config = self.config("a", 4)
        self.run_it("train", "--config", config)
        run = self.folder / "a"
        for name in ("config.toml", "metrics.jsonl", "samples.jsonl", "curves.svg", "checkpoints", "model/config.json"):
            self.assertTrue((run / name).exists(), name)
        self.assertTrue(list(run.glob("events.out.tfevents*")))
        self.assertEqual([m["step"] for m in self.metrics("a")], [0, 1, 2, 3, 4])
        self.assertIn("not empty", self.run_it("train", "--config", config, code=1).stderr)
        self.assertIn("nothing to do", self.run_it("train", "--config", config, "--resume", code=1).stderr)
        self.run_it("inspect", "--model", run / "model")
        newest = sorted((run / "checkpoints").glob("step-*"))[-1]
        for given in (["--checkpoint"], []):
            self.assertIn("step 4", self.run_it("inspect", *given, newest).stdout)
        self.run_it("convert", "checkpoint", "--checkpoint", newest, "--output", self.folder / "export")
        self.assertEqual((self.folder / "export/model.safetensors").read_bytes(), (run / "model/model.safetensors").read_bytes())
        # The resolved configuration is a configuration.
        self.run_it("train", "--config", run / "config.toml", "--dry-run")

    def test_eval_of_a_model_and_of_a_checkpoint(self):
        config = self.config("e", 2)
        self.run_it("train", "--config", config)
        newest = sorted((self.folder / "e/checkpoints").glob("step-*"))[-1]
        said = [json.loads(self.run_it("eval", "--config", config, *which, "--set", "eval.samples=3", "--set",
                                       "eval.temperature=1", "--set", "reward.kind=numeric").stdout)
                for which in (("--model", self.folder / "e/model"), ("--checkpoint", newest))]
        for one in said:
            one.pop("time/eval_seconds")
        self.assertEqual(said[0], said[1])
        self.assertEqual(set(said[0]), {"eval/" + name for name in (
            "accuracy", "reward", "length_mean_tokens", "pass_at_n", "best_of_n", "majority_at_n")})

    def test_sft_learns(self):
        self.run_it("train", "--config", self.config("s", 6, preset="sft", kind="exact"))
        loss = [m["policy/loss"] for m in self.metrics("s") if "policy/loss" in m]
        self.assertLess(loss[-1], loss[0])

    def test_killed_and_resumed_is_bit_identical(self):
        self.run_it("train", "--config", self.config("whole", 9))
        whole = self.metrics("whole")
        config = self.config("cut", 9)
        for stop in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            program = subprocess.Popen([QUADRILLE, "train", "--config", config, "--resume"], cwd=self.folder,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            path = self.folder / "cut/metrics.jsonl"
            seen = len(path.read_text().splitlines()) if path.exists() else 0
            deadline = time.monotonic() + 60
            while program.poll() is None and time.monotonic() < deadline:
                if path.exists() and len(path.read_text().splitlines()) >= seen + 3:
                    program.send_signal(stop)
                    break
                time.sleep(0.005)
            self.assertIn(program.wait(60), (-signal.SIGKILL, 130, 0))
        done = subprocess.run([QUADRILLE, "train", "--config", config, "--resume"], cwd=self.folder, capture_output=True,
                              text=True, timeout=120)
        if done.returncode != 0:
            self.assertIn("nothing to do", done.stderr)
        self.assertEqual(self.metrics("cut"), whole)
        self.assertEqual((self.folder / "cut/model/model.safetensors").read_bytes(),
                         (self.folder / "whole/model/model.safetensors").read_bytes())

    def test_damaged_checkpoint_falls_back(self):
        config = self.config("d", 4)
        self.run_it("train", "--config", config)
        newest = sorted((self.folder / "d/checkpoints").glob("step-*"))[-1]
        shard = sorted(newest.glob("*.safetensors"))[0]
        data = bytearray(shard.read_bytes())
        data[-3] ^= 1
        shard.write_bytes(bytes(data))
        done = self.run_it("train", "--config", config, "--resume", "--set", "run.steps=6")
        self.assertIn(shard.name, done.stderr)
        self.assertIn("after step 2", done.stderr)


if __name__ == "__main__":
    os.environ["NO_COLOR"] = "1"
    unittest.main(verbosity=2)
