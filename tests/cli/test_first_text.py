"""What a first text costs: no TensorFlow, and nothing is traced twice: pytest tests/cli/test_first_text.py"""
